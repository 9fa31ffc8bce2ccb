"""How fast the server gives slots back."""

from __future__ import annotations

import pytest

from tidegate.core.rates import ServiceRate


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
