"""Back-off, rates and the blind budget: tables of numbers in and numbers out."""

from __future__ import annotations

import pytest

from tidegate.core.backoff import LEAST_WAIT_S, Backoff
from tidegate.core.blind import ERROR_CUT, GAP_CUT, BlindBudget
from tidegate.core.options import BackoffOptions
from tidegate.core.pace import PaceGuard
from tidegate.core.rates import ServiceRate


def test_backoff_bounds_grow_to_the_cap_and_reset() -> None:
    """0.05 s x 1.5^n up to 0.5 s."""
    backoff = Backoff(BackoffOptions())
    bounds = [backoff.next_wait_s(lambda: 1.0) for _ in range(9)]
    assert bounds == pytest.approx([min(0.5, 0.05 * 1.5**step) for step in range(9)])
    backoff.reset()
    assert backoff.next_wait_s(lambda: 1.0) == pytest.approx(0.05)


def test_backoff_is_full_jitter_and_never_zero() -> None:
    """The whole interval is drawn from; a drawn zero does not make the shell spin."""
    backoff = Backoff(BackoffOptions())
    assert backoff.next_wait_s(lambda: 0.0) == LEAST_WAIT_S
    assert backoff.next_wait_s(lambda: 0.5) == pytest.approx(0.5 * 0.05 * 1.5)


def test_rate_counts_only_completions_while_work_waited() -> None:
    """A server that is not full shows its demand, not its speed."""
    rate = ServiceRate(256, 0.0)
    for step in range(100):
        rate.tick(step * 1.0, is_loaded=False)
        rate.completed(4.0)
    assert not rate.is_measured
    assert rate.per_s(8, 0.01) == pytest.approx(1.1 * 8 / 4, rel=0.02)
    for step in range(100, 1000):
        rate.tick(100 + (step - 100) / 10, is_loaded=True)
        rate.completed(4.0)
    assert rate.per_s(8, 0.01) == pytest.approx(1.1 * 10, rel=0.1)


def test_rate_is_kept_through_idle_time() -> None:
    """A pause says nothing of how fast the server is."""
    rate = ServiceRate(256, 0.0)
    for step in range(300):
        rate.tick(step / 10, is_loaded=True)
        rate.completed(4.0)
    rate.tick(30.0, is_loaded=False)
    rate.tick(500.0, is_loaded=False)
    assert rate.per_s(0, 0.01) == pytest.approx(11, rel=0.1)


def test_rate_before_anything_is_known_and_its_floor() -> None:
    """The prior answers, and nobody is ever told to wait for ever."""
    rate = ServiceRate(256, 0.0)
    assert not rate.is_timed
    assert rate.per_s(0, 1 / 55) == pytest.approx(1 / 55)
    assert rate.per_s(32, 1 / 55) == pytest.approx(1.1 * 32 / 5.12)


def test_rate_survives_a_clock_that_goes_backwards() -> None:
    """No negative time is counted."""
    rate = ServiceRate(256, 100.0)
    rate.tick(110.0, is_loaded=True)
    rate.tick(50.0, is_loaded=True)
    rate.completed(0.0)
    assert rate.per_s(1, 0.1) > 0


def test_pace_guard_shrinks_above_its_target_and_grows_back() -> None:
    """Slower tokens than wanted: fewer at once; without a target nothing changes."""
    guard = PaceGuard(0.05)
    assert guard.bound(100) == 100
    assert guard.bound(None) is None
    for second in range(3):
        guard.take(0.08, 40, 100.0 + second)
        guard.take(0.08, 40, 100.0 + second + 0.5)
    assert guard.share == pytest.approx(0.9**3)
    assert guard.bound(100) == 72
    assert guard.bound(None) == 29
    for second in range(200):
        guard.take(0.08, 40, 200.0 + second)
    assert guard.bound(5) == 1
    for second in range(100):
        guard.take(0.02, 40, 1000.0 + second)
    assert guard.share == 1.0
    idle = PaceGuard(None)
    idle.take(9.0, 5, 1.0)
    assert idle.bound(None) is None


def test_blind_budget_knows_a_gap_from_a_slow_stream() -> None:
    """A silence far beyond the usual is distress; a little late is not."""
    budget = BlindBudget(32)
    for _ in range(50):
        assert not budget.token(0.4, 1.0)
    assert budget.gap_s == pytest.approx(8.0)
    assert not budget.token(7.0, 1.0)
    assert budget.token(20.0, 1.0)
    assert not BlindBudget(32).token(4.9, 0.0)


def test_blind_budget_knows_a_late_first_byte() -> None:
    """Per prompt token, three times the usual is late; the first ever is not."""
    budget = BlindBudget(32)
    assert not budget.first_token(1.0, 1000)
    assert not budget.first_token(2.9, 1000)
    assert budget.first_token(9.0, 1000)
    assert not budget.first_token(9.0, 9000)


def test_blind_budget_shrinks_once_per_service_time_and_grows_when_it_limits() -> None:
    """Multiplicative decrease, additive increase, within bounds."""
    budget = BlindBudget(10)
    budget.cut(GAP_CUT, 100.0, 4.0)
    budget.cut(GAP_CUT, 101.0, 4.0)
    assert budget.share == pytest.approx(0.8)
    assert budget.concurrency == pytest.approx(8.0)
    for instant in (110.0, 113.0):
        budget.limiting(instant, 4.0)
        assert budget.share == pytest.approx(0.8), "a spell begins with a quiet time"
    budget.limiting(114.0, 4.0)
    assert budget.share > 0.8
    assert budget.concurrency == pytest.approx(9.0)
    for step in range(200):
        budget.cut(ERROR_CUT, 200.0 + 10 * step, 4.0)
    assert budget.share == pytest.approx(0.1)
    assert budget.concurrency == 1.0
    for step in range(2000):
        budget.limiting(10_000.0 + 4 * step, 4.0)
    assert budget.share == 1.0
    assert budget.concurrency == 80.0
