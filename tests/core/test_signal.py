"""What a reading is worth: fresh, stale, blind, frozen, stalled, asleep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driver import Driver, wide
from tidegate.core.decisions import Reason
from tidegate.core.options import SignalOptions
from tidegate.core.reading import Reading
from tidegate.core.signal import Signal, State

T0 = 100.0


def signal(**reading: Any) -> Signal:
    """A signal with one reading at T0."""
    made = Signal(SignalOptions())
    made.take(Reading(**{"kv_usage": 0.5, **reading}), 0.0, T0)
    return made


@pytest.mark.parametrize(
    ("age_s", "state"),
    [(0.0, State.FRESH), (2.0, State.FRESH), (2.1, State.STALE), (9.9, State.STALE), (10.0, State.BLIND)],
)
def test_a_reading_ages_into_stale_and_blind(age_s: float, state: State) -> None:
    """What is late is a state of its own, never a level of zero."""
    assert signal().state(T0 + age_s) is state


def test_no_reading_is_blind_and_sleep_is_said() -> None:
    """Missing is not empty."""
    assert Signal(SignalOptions()).state(T0) is State.BLIND
    assert Signal(SignalOptions()).age_s(T0) is None
    assert Signal(SignalOptions()).level(0.0, 100.0) is None
    assert Signal(SignalOptions()).changes_at(T0) is None
    assert not Signal(SignalOptions()).is_queueing(2)
    assert signal(asleep=True).state(T0 + 1) is State.ASLEEP
    assert signal(asleep=True).changes_at(T0) is None


def test_margin_widens_with_age() -> None:
    """A percent of the capacity for every second beyond fresh, at most ten."""
    made = signal()
    assert made.extra_margin(T0 + 2) == 0
    assert made.extra_margin(T0 + 7) == pytest.approx(0.05)
    assert made.extra_margin(T0 + 600) == pytest.approx(0.1)


def test_level_carries_our_own_leases_forward() -> None:
    """What was taken since the reading counts, and what was given back too."""
    made = Signal(SignalOptions())
    made.take(Reading(kv_usage=0.5), 300.0, T0)
    assert made.level(400.0, 1000.0) == pytest.approx(0.6)
    assert made.level(100.0, 1000.0) == pytest.approx(0.3)
    assert made.level(100.0, None) == pytest.approx(0.5)
    made.take(Reading(kv_usage=None), 300.0, T0)
    assert made.level(100.0, 1000.0) is None
    assert not made.is_above(None, 0.8, 0.7)


def test_hysteresis() -> None:
    """Closed from the high mark until below the low one."""
    made = signal()
    assert [made.is_above(level, 0.8, 0.7) for level in (0.79, 0.8, 0.75, 0.7, 0.69, 0.75)] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_frozen_when_streams_move_and_nothing_else_does() -> None:
    """A gauge that repeats itself while our own tokens flow is not the truth."""
    made = signal(generation_tokens=5.0)
    made.busy(3, T0)
    made.progress_at = T0 + 11
    made.take(Reading(kv_usage=0.5, generation_tokens=5.0), 0.0, T0 + 11)
    assert made.state(T0 + 11) is State.FROZEN
    made.take(Reading(kv_usage=0.5, generation_tokens=9.0), 0.0, T0 + 11)
    assert made.state(T0 + 11) is State.FRESH


def stalled_signal(**last: Any) -> Signal:
    """An engine that was seen to count, whose figures then stay for six seconds, but `last`."""
    made = signal(generation_tokens=5.0, running=3)
    made.busy(3, T0)
    made.take(Reading(kv_usage=0.6, generation_tokens=9.0, running=3), 0.0, T0 + 1)
    still = {"kv_usage": 0.6, "generation_tokens": 9.0, "running": 3}
    made.take(Reading(**{**still, **last}), 0.0, T0 + 7)
    return made


def test_stalled_when_work_runs_and_nothing_moves() -> None:
    """Counters stand still and no stream moves: nothing more is sent in, however the queue grows."""
    assert stalled_signal().state(T0 + 7) is State.STALLED
    made = stalled_signal(waiting=4)
    assert made.state(T0 + 7) is State.STALLED
    made.progress_at = T0 + 6
    assert made.state(T0 + 7) is State.FRESH
    made.busy(0, T0 + 7)
    assert made.busy_since is None


def test_a_long_prompt_is_no_stall() -> None:
    """While it is read the level rises, though the counters wait for its end."""
    assert stalled_signal(kv_usage=0.7).state(T0 + 7) is State.FRESH


def test_an_engine_that_says_it_is_idle_is_believed_for_longer() -> None:
    """The app in front of it may be at work, or nobody: that closes the door to none, for a while."""
    made = stalled_signal(running=0, waiting=0)
    for at in (T0 + 13, T0 + 36):
        made.take(Reading(kv_usage=0.6, generation_tokens=9.0, running=0, waiting=0), 0.0, at)
        assert made.state(at) is State.FRESH
    made.take(Reading(kv_usage=0.6, generation_tokens=9.0, running=0, waiting=0), 0.0, T0 + 38)
    assert made.state(T0 + 38) is State.STALLED  # it may hang all the same
    assert stalled_signal(running=3, waiting=0).state(T0 + 7) is State.STALLED


DEAD: dict[str, Any] = {
    "kv_usage": 0.0,
    "generation_tokens": 0.0,
    "prompt_tokens": 0.0,
    "running": 0,
    "waiting": 0,
}


def test_an_engine_that_hangs_before_its_first_token_is_stalled_too() -> None:
    """Its counters were never seen to move; it says all along that it has nothing to do, and we wait."""
    made = signal(**DEAD)
    made.busy(3, T0)
    made.take(Reading(**DEAD), 0.0, T0 + 29)
    assert made.state(T0 + 29) is State.FRESH
    made.take(Reading(**DEAD), 0.0, T0 + 31)
    assert made.state(T0 + 31) is State.STALLED
    made.take(Reading(**DEAD | {"running": 1}), 0.0, T0 + 32)
    assert made.state(T0 + 32) is State.FRESH


def test_an_engine_that_hung_until_all_had_left_is_on_trial() -> None:
    """The next one goes in alone, until a figure moves or an answer comes; before a stall nobody is."""
    made = signal(**DEAD)
    for leases, at in ((1, T0), (0, T0 + 20), (1, T0 + 21)):
        made.busy(leases, at)
        made.take(Reading(**DEAD), 0.0, at)
    assert made.hung_since is None
    made.take(Reading(**DEAD), 0.0, T0 + 52)
    for leases, at in ((0, T0 + 52), (1, T0 + 60), (0, T0 + 61), (1, T0 + 62)):
        made.busy(leases, at)
        assert made.state(T0 + 53) is (State.STALLED if leases else State.FRESH)
    made.take(Reading(**DEAD | {"running": 1}), 0.0, T0 + 63)
    assert made.state(T0 + 63) is State.FRESH
    made.busy(0, T0 + 64)
    assert made.hung_since is None
    made.busy(1, T0 + 64)
    made.take(Reading(**DEAD | {"running": 0}), 0.0, T0 + 65)
    made.take(Reading(**DEAD | {"running": 0}), 0.0, T0 + 99)
    made.busy(0, T0 + 99, has_completed=True)
    assert made.hung_since is None


@pytest.mark.parametrize("untold", ["running", "generation_tokens"])
def test_a_source_that_tells_too_little_is_never_called_stalled(untold: str) -> None:
    """A level alone may stand still through a long answer."""
    told = {name: figure for name, figure in DEAD.items() if name != untold}
    made = signal(**told)
    made.busy(3, T0)
    made.take(Reading(**told), 0.0, T0 + 600)
    assert made.state(T0 + 600) is State.FRESH


def test_nobody_is_sent_into_an_engine_that_never_came_to_life() -> None:
    """Who is in may hang; who comes later is told to come back, and starts once the engine moves."""
    driver = Driver(wide())
    driver.read(**DEAD)
    driver.admit()
    for _ in range(31):
        driver.now += 1.0
        driver.read(**DEAD)
    late = driver.queue()
    for _ in range(61):
        assert driver.pass_s(1.0) == []
        refused = driver.step.refusals
        driver.read(**DEAD)
        refused += driver.step.refusals
        if refused:
            break
    assert [(refusal.ticket, refusal.reason) for refusal in refused] == [(late.ticket, Reason.WAIT_EXPIRED)]
    waiting = driver.queue()
    assert driver.read(**DEAD | {"running": 1, "generation_tokens": 1.0}) == [waiting.ticket]


def test_counters_that_move_at_a_requests_end_say_nothing_of_a_stall() -> None:
    """Some engines count a whole answer at once; between two ends they stand still and are well."""
    made = signal(generation_tokens=5.0, running=3)
    made.busy(3, T0)
    made.busy(2, T0 + 1)
    made.take(Reading(kv_usage=0.6, generation_tokens=900.0, running=3), 0.0, T0 + 1)
    made.take(Reading(kv_usage=0.6, generation_tokens=900.0, running=3), 0.0, T0 + 30)
    assert made.state(T0 + 30) is State.FRESH


def test_frozen_high_with_nothing_in_flight_lets_a_trickle_through() -> None:
    """One request at a time, so that the gauge can move; with foreign load running it is real."""
    driver = Driver(wide(high_watermark=0.8))
    driver.read(0.9, running=0)
    waiting = driver.queue()
    driver.queue()
    driver.now += 3.0
    assert driver.read(0.9, running=0) == [waiting.ticket]
    assert driver.instance.state(driver.now) is State.FRESH
    busy = Driver(wide(high_watermark=0.8))
    busy.read(0.9, running=4)
    busy.queue()
    busy.now += 3.0
    assert busy.read(0.9, running=4) == []


def test_gauge_that_is_missing_does_not_freeze() -> None:
    """An engine without a level has none that could stand still."""
    signal = Signal(SignalOptions(stale_after_s=100.0, blind_after_s=100.0))
    signal.take(Reading(kv_usage=None, running=0), 0.0, 0.0)
    assert signal.state(50.0) is State.FRESH
