"""What the gate does while nobody tells it the level, or the engine sleeps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.blind import ERROR_CUT, GAP_CUT, BlindBudget
from tidegate.core.decisions import Admit, Ask, Ending, Reason, Settlement
from tidegate.core.gate import Gate
from tidegate.core.options import BackoffOptions, GateOptions, KvOptions, SignalOptions
from tidegate.core.reading import InvalidReading, Reading


def test_asleep_refuses_all_and_wakes_to_business() -> None:
    """Who waits is told, who comes is told, and a wake-up ends it."""
    driver = Driver(wide(high_watermark=0.8))
    driver.read(0.9, running=4)
    driver.queue()
    driver.read(0.0, asleep=True)
    assert [refusal.reason for refusal in driver.step.refusals] == [Reason.ASLEEP]
    refusal = driver.refuse()
    assert (refusal.reason, refusal.scope) == (Reason.ASLEEP, "model")
    assert refusal.retry_after_s is not None
    driver.read(0.0)
    driver.admit()


def test_blind_closed_refuses_and_blind_open_lets_pass() -> None:
    """The policy is the operator's; the reason says that it was blindness."""
    shut = Driver(GateOptions(signal=SignalOptions(on_blind="closed")))
    assert shut.refuse().reason is Reason.KV_BLIND
    shut.read(0.0, capacity_tokens=100)
    shut.admit(max_output_tokens=80)
    shut.queue(max_output_tokens=80)
    shut.pass_s(11.0)
    assert shut.refuse().reason is Reason.KV_BLIND
    shut.pass_s(30.0)
    assert [refusal.reason for refusal in shut.step.refusals] == [Reason.KV_BLIND]
    wide_open = Driver(GateOptions(kv=KvOptions(capacity_tokens=100), signal=SignalOptions(on_blind="open")))
    for _ in range(50):
        wide_open.admit()


def test_blind_local_bounds_by_the_ledger_and_shrinks_on_distress() -> None:
    """With a known capacity the ledger goes on; gaps in streams narrow it."""
    driver = Driver()
    tickets = [driver.admit().ticket for _ in range(9)]
    driver.queue()
    for ticket in tickets:
        driver.progress(ticket, 1)
    driver.now += 30.0
    driver.progress(tickets[0], 2)
    assert driver.instance.budget.share == pytest.approx(0.8)
    driver.read(0.5, running=9)
    driver.progress(tickets[1], 2)
    assert driver.instance.budget.share == pytest.approx(0.8), "with a reading, distress is not guessed"
    assert 0.8 <= driver.instance._ramp(driver.now + 5) < 1.0
    for _ in range(3):
        driver.now += 5.0
        driver.read(0.5, running=9)
    assert driver.instance._ramp(driver.now) == 1.0


def test_without_capacity_a_burst_between_samples_is_credited() -> None:
    """A level and no capacity: what was admitted since the sample counts at its usual share."""
    driver = Driver(GateOptions(kv=KvOptions(high_watermark=0.8), signal=SignalOptions(blind_concurrency=10)))
    driver.read(0.4)
    started = 0
    for _ in range(50):
        driver.offer()
        started += driver.step.decision.__class__.__name__ == "Admit"
    assert 3 <= started <= 5


def test_silent_instance_freezes_nobody_and_is_forgotten() -> None:
    """One stale instance leaves the rest alone; after long it is gone."""
    driver = Driver(wide(high_watermark=0.8))
    for name in ("a", "b"):
        driver.gate.observe([Reading(kv_usage=0.1, instance=name)], driver.now, half)
    driver.now += 50.0
    driver.gate.observe([Reading(kv_usage=0.2, instance="b")], driver.now, half)
    states = {item.name: item.state for item in driver.gate.statistics(driver.now).instances}
    assert states == {"a": "blind", "b": "fresh"}
    driver.admit()
    driver.now += 80.0
    driver.gate.observe([Reading(kv_usage=0.2, instance="b")], driver.now, half)
    driver.gate.probe_failed("c", driver.now, half)
    driver.gate.probe_failed(None, driver.now, half)
    assert {item.name for item in driver.gate.statistics(driver.now).instances} >= {"b", "c"}


def test_settings_of_backoff_and_blindness_reach_the_gate() -> None:
    """With no reading ever the gate is blind from the start and bounded by its own count."""
    options = GateOptions(
        backoff=BackoffOptions(base_s=0.2, cap_s=0.2), signal=SignalOptions(blind_concurrency=3)
    )
    gate = Gate(options, 0.0)
    decisions = [
        gate.offer(Ask(ticket=n, tenant="t", priority_class="vip", prompt_tokens=1), 0.0, half).decision
        for n in range(5)
    ]
    assert [isinstance(decision, Admit) for decision in decisions] == [True] * 3 + [False] * 2
    step = gate.advance(0.05, half)
    assert step.wake_at == pytest.approx(0.1)
    step = gate.release(0, Settlement(ending=Ending.ABANDONED), 0.06, half)
    assert [admit.ticket for admit in step.grants] == [3]


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("kv_usage", math.nan, "kv_usage"),
        ("kv_usage", -0.1, "kv_usage"),
        ("kv_usage", 87.0, "percentage"),
        ("kv_usage", 1.0001, "fraction"),
        ("kv_usage", True, "number"),
        ("running", math.inf, "running"),
        ("capacity_tokens", -1, "capacity_tokens"),
        ("instance", "", "instance"),
    ],
)
def test_reading_out_of_range_is_refused(field: str, value: Any, hint: str) -> None:
    """A sample that cannot be true never becomes 0 %."""
    with pytest.raises(InvalidReading, match=hint):
        Reading(**{"kv_usage": 0.5, field: value})


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
