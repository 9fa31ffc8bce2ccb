"""Signal, calibration, calendar, tenants and room: each part by itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.core.driver import Driver, half, wide
from tests.core.test_ledger import lease
from tidegate.core.calibration import Calibration
from tidegate.core.decisions import Ending, Reason
from tidegate.core.ledger import Ledger
from tidegate.core.options import (
    CalendarOptions,
    ClassOptions,
    GateOptions,
    KvOptions,
    QueueOptions,
    SignalOptions,
    TenantLimits,
)
from tidegate.core.reading import Reading
from tidegate.core.signal import Signal, State
from tidegate.core.tenants import OVERFLOW, Tenants

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


def test_capacity_is_learnt_where_nobody_states_it() -> None:
    """Our own tokens over the level, after some samples; before that each lease counts as a share."""
    driver = Driver(GateOptions(kv=KvOptions(high_watermark=0.8, block_tokens=1)))
    driver.read(0.0)
    ticket = driver.admit(prompt_tokens=99.5, max_output_tokens=400).ticket
    driver.progress(ticket, 100)
    assert driver.instance.capacity is None
    for step in range(3):
        driver.now += 1.0
        driver.read(0.1, running=1, generation_tokens=step)
    assert driver.instance.capacity == pytest.approx(2000)


def test_without_capacity_a_burst_between_samples_is_credited() -> None:
    """A level and no capacity: what was admitted since the sample counts at its usual share."""
    driver = Driver(GateOptions(kv=KvOptions(high_watermark=0.8), signal=SignalOptions(blind_concurrency=10)))
    driver.read(0.4)
    started = 0
    for _ in range(50):
        driver.offer()
        started += driver.step.decision.__class__.__name__ == "Admit"
    assert 3 <= started <= 5


def covered(tenant_prompts: dict[str, float], seen: float = 0.0) -> Ledger:
    """A ledger of leases past their first token, one per tenant."""
    ledger = Ledger()
    for ticket, (tenant, prompt) in enumerate(tenant_prompts.items()):
        made = lease(ticket, prompt, 500)
        object.__setattr__(made.ask, "tenant", tenant)
        made.seen = seen
        made.refresh()
        ledger.add(made)
        ledger.mark_first_token(made, 0.0)
    return ledger


def read(usage: float, **reading: Any) -> Reading:
    """A reading of an engine of 10,000 tokens."""
    return Reading(kv_usage=usage, capacity_tokens=10_000, **reading)


def test_share_rises_at_once_and_falls_slowly_and_only_in_calm() -> None:
    """Too small an estimate is corrected by one reading; sharing is believed step by step."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"a": 4000.0})
    calibration.learn(read(0.6, running=1), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.5)
    calibration.learn(read(0.4, running=0, waiting=1, preemptions=0), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.5), "not while the engine queues"
    calibration.learn(read(0.4, running=1, preemptions=2), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.5), "nor when it preempts"
    calibration.learn(read(0.4, running=1), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.35)
    calibration.learn(read(0.4, running=1), ledger, 0.1)
    assert 1.3 < calibration.kp < 1.35
    for _ in range(100):
        calibration.learn(read(0.0, running=1), ledger, 1.0)
    assert calibration.kp == pytest.approx(0.1)
    assert ledger.held_tokens() == pytest.approx(400)


def test_share_of_one_tenant_does_not_vouch_for_another() -> None:
    """A tenant of shared prompts, then a stranger with unique ones: the stranger is charged in full."""
    calibration = Calibration(KvOptions(), 100)
    for _ in range(60):
        calibration.learn(read(0.2, running=1), covered({"shared": 6000.0}), 1.0)
    assert calibration.share("shared") == pytest.approx(1 / 3, abs=0.02)
    assert calibration.share("stranger") == 1.0
    calibration.learn(read(0.4, running=2), covered({"shared": 6000.0, "stranger": 2000.0}), 1.0)
    assert calibration.share("stranger") == pytest.approx(1.0, abs=0.02)


def test_what_is_not_ours_is_foreign_and_explained_once() -> None:
    """More running than we sent: the excess is other doors', and our share stays as it was."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"a": 2000.0})
    calibration.learn(read(0.7, running=9), ledger, 1.0)
    assert calibration.foreign_tokens == pytest.approx(5000)
    assert calibration.kp == pytest.approx(1.0)
    calibration.learn(read(0.2, running=1), ledger, 1.0)
    assert calibration.foreign_tokens == 0.0
    calibration.learn(read(0.5), Ledger(), 1.0)
    assert calibration.foreign_tokens == pytest.approx(5000)
    calibration.learn(read(0.9), covered({"a": 2000.0}), 1.0)
    assert calibration.foreign_tokens == pytest.approx(5000), "beyond the clamp of the share"


def test_foreign_load_takes_its_part_of_the_capacity() -> None:
    """The ledger fits into what the others leave."""
    driver = Driver()
    driver.read(0.75, running=5)
    assert driver.instance.calibration.foreign_tokens == pytest.approx(750)
    driver.admit()
    driver.admit()
    driver.queue()


def test_unread_prompts_explain_no_surplus_and_books_ahead_teach_nothing() -> None:
    """A prompt in progress may be anywhere between nothing and all of it."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"a": 2000.0})
    unread = lease(9, 3000, 100)
    unread.first_token_at = None
    unread.refresh()
    ledger.add(unread)
    for usage in (0.2, 0.35, 0.5):
        calibration.learn(read(usage, running=2), ledger, 1.0)
        assert calibration.kp == pytest.approx(1.0)
    crowd = covered({str(number): 500.0 for number in range(10)})
    calibration.learn(read(0.1, running=2), crowd, 1.0)
    assert calibration.kp == pytest.approx(1.0)


def test_margin_answers_to_preemptions_once_per_bout_and_eases() -> None:
    """A counter that went down has restarted and says nothing."""
    calibration = Calibration(KvOptions(), 100)
    steps = [
        (0, 1.0, 0.048),
        (5, 1.0, 0.078),
        (9, 1.0, 0.078),
        (9, 5.0, 0.068),
        (12, 5.0, 0.098),
        (0, 1.0, 0.096),
    ]
    for preemptions, elapsed_s, margin in steps:
        calibration.learn(read(0.1, preemptions=preemptions), Ledger(), elapsed_s)
        assert calibration.margin == pytest.approx(margin)
    for _ in range(200):
        calibration.learn(read(0.1), Ledger(), 1.0)
    assert calibration.margin == 0.03


def test_shares_remembered_are_bounded() -> None:
    """A million tenants leave no more than the bound behind."""
    calibration = Calibration(KvOptions(), 5)
    for number in range(50):
        calibration.learn(read(0.6, running=1), covered({f"t{number}": 2000.0}), 1.0)
    assert len(calibration._shares) <= 5


def test_capacity_configured_before_stated_before_learnt() -> None:
    """A value that is set always holds."""
    assert Calibration(KvOptions(capacity_tokens=7), 5).capacity(read(0.1)) == 7
    assert Calibration(KvOptions(), 5).capacity(read(0.1)) == 10_000
    assert Calibration(KvOptions(), 5).capacity(None) is None


def test_answers_charged_with_their_declared_maximum_need_no_wide_watermark() -> None:
    """Their peak is an upper bound: while nobody runs who may outlive it, the watermark is out of the way."""
    driver = Driver(GateOptions(kv=KvOptions(capacity_tokens=100_000)))
    driver.read(0.0)
    assert driver.instance.high_watermark == 0.82
    driver.admit(max_output_tokens=20)
    driver.read(0.1)
    assert driver.instance.high_watermark == 0.96
    driver.admit(max_output_tokens=None)
    driver.read(0.1)
    assert driver.instance.high_watermark == 0.82


def test_the_smallest_of_the_top_class_may_use_the_margin() -> None:
    """What is kept free against wrong predictions is open to two per cent of the cache, no more."""
    driver = Driver(
        GateOptions(kv=KvOptions(capacity_tokens=10_000, margin=0.1, margin_min=0.1, high_watermark=1.0))
    )
    driver.read(0.0)
    driver.admit("t", "vip", prompt_tokens=8900, max_output_tokens=10)
    driver.cancel(driver.queue("t", "vip", prompt_tokens=300, max_output_tokens=10).ticket)
    driver.cancel(driver.queue("t", "standard", prompt_tokens=100, max_output_tokens=10).ticket)
    driver.admit("t", "vip", prompt_tokens=100, max_output_tokens=10)


def test_high_watermark_is_wide_only_once_capacity_and_lengths_are_known() -> None:
    """0.82 until then, 0.955 after; a value that is set always holds."""
    driver = Driver(GateOptions(kv=KvOptions(capacity_tokens=100_000)))
    assert driver.instance.high_watermark == 0.82
    for _ in range(60):
        driver.release(driver.admit().ticket, output_tokens=20)
    driver.read(0.0)
    assert driver.instance.high_watermark == 0.955
    assert driver.instance.low_watermark == pytest.approx(0.94)
    assert Driver(wide(high_watermark=0.7, low_watermark=0.5)).instance.low_watermark == 0.5


def test_one_hot_instance_takes_its_own_share_out() -> None:
    """Requests nobody routed go where it fits; a routed one waits for its own instance."""
    driver = Driver(wide(high_watermark=0.8))
    driver.step = driver.gate.observe(
        [
            Reading(kv_usage=0.95, instance="hot", running=9),
            Reading(kv_usage=0.1, instance="cool", running=0),
        ],
        driver.now,
        half,
    )
    assert driver.admit().instance == "cool"
    assert driver.admit(instance="cool").instance == "cool"
    driver.queue(instance="hot")
    assert driver.admit("other").instance == "cool", "a head that waits for another instance blocks nobody"


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


def slots(seats: int = 1, **options: Any) -> Driver:
    """One lease at a time, a small room, and a calendar."""
    return Driver(
        GateOptions(
            kv=KvOptions(capacity_tokens=100, margin=0.0, margin_min=0.0, high_watermark=1.0, block_tokens=1),
            queue=QueueOptions(max_requests=seats),
            calendar=CalendarOptions(**options),
            classes=(
                ClassOptions(name="vip", max_wait_s=1e6),
                ClassOptions(name="standard", max_wait_s=1e6),
            ),
        )
    )


FULL: dict[str, Any] = {"prompt_tokens": 10, "max_output_tokens": 80}


def key(name: str, attempt: int = 1) -> dict[str, Any]:
    """What a keyed request carries."""
    return {"identity": name, "is_keyed": True, "digest": name.encode(), "attempt": attempt, **FULL}


def test_every_refused_caller_gets_a_slot_of_its_own() -> None:
    """Waits differ by the spacing, and none is told twice."""
    driver = slots()
    driver.admit(**FULL)
    driver.queue(**FULL)
    waits = [driver.refuse(**key(f"k{number}")).retry_after_s or 0.0 for number in range(8)]
    gaps = [after - before for before, after in itertools.pairwise(waits)]
    assert min(gaps) > 1.0


def test_told_waits_stand_when_the_rate_changes() -> None:
    """Only new slots move; an early return is refused with what is left of the wait it had."""
    driver = slots()
    running = driver.admit(**FULL).ticket
    waiting = driver.queue(**FULL).ticket
    told = driver.refuse(**key("k")).retry_after_s
    assert told is not None
    for _ in range(5):
        driver.now += 0.1
        driver.release(running)
        running, waiting = waiting, driver.offer(**FULL).ticket
    early = driver.refuse(**key("k", 2))
    assert early.reason is Reason.TOO_EARLY
    assert early.retry_after_s == pytest.approx(told - 0.5)
    again = driver.refuse(**key("k", 3))
    assert again.retry_after_s == pytest.approx(told - 0.5)


def test_early_return_is_admitted_when_nothing_waits_and_it_fits() -> None:
    """An idle server turns nobody away for being early."""
    driver = slots()
    running = driver.admit(**FULL).ticket
    waiting = driver.queue(**FULL).ticket
    driver.refuse(**key("k"))
    driver.cancel(waiting)
    driver.release(running)
    driver.admit(**key("k", 2))
    assert driver.gate._books.calendar.outstanding == 0


def test_return_on_time_keeps_its_order_and_goes_before_newcomers() -> None:
    """The seat was kept for it, and its arrival counts from the first attempt."""
    driver = slots(seats=2)
    running = driver.admit(**FULL).ticket
    waiting = [driver.queue(**FULL).ticket for _ in range(2)]
    told = driver.refuse(**key("k")).retry_after_s
    assert told is not None
    driver.now += told
    assert driver.release(running) == waiting[:1]
    assert driver.refuse("newcomer", **FULL).reason is Reason.QUEUE_FULL
    back = driver.queue(**key("k", 2))
    assert driver.gate._books.queue.waiters[back.ticket].order == pytest.approx(driver.now - told)


def test_slots_of_callers_that_never_return_leave_nothing_behind() -> None:
    """Under lasting overload a nameless slot that lapsed is forgotten, though others are open."""
    options = GateOptions(queue=QueueOptions(max_requests=1), kv=KvOptions(max_sequences=1))
    driver = Driver(options)
    driver.read(0.1)
    driver.admit()
    driver.queue()
    for _ in range(400):
        driver.pass_s(2.0)
        driver.offer()
    calendar = driver.gate._books.calendar
    assert sum(map(len, calendar._anonymous.values())) == calendar.outstanding


def test_nameless_retry_takes_its_tenants_nameless_slot() -> None:
    """A stock client has no key; its second attempt is known by its tenant and by being one."""
    driver = slots()
    running = driver.admit(**FULL).ticket
    driver.queue(**FULL)
    told = driver.refuse(**FULL).retry_after_s
    assert told is not None
    driver.now += told
    driver.release(running)
    back = driver.queue(attempt=2, **FULL)
    assert driver.gate._books.queue.waiters[back.ticket].is_returning


def test_waits_beyond_the_cap_take_no_slot() -> None:
    """They are spread over the last 15 % before the cap, and so beyond a tenant's bound."""
    driver = slots(max_retry_after_s=20.0, max_booked_per_tenant=2)
    driver.admit(**FULL)
    driver.queue(**FULL)
    waits = [driver.refuse(**key(f"k{number}")).retry_after_s or 0.0 for number in range(6)]
    assert driver.gate._books.calendar.outstanding <= 2
    assert waits[-3:] == pytest.approx([20 * 0.925] * 3)


def test_unclaimed_slots_lapse_and_teach_how_many_are_used() -> None:
    """The spacing shrinks when few come back, not below a quarter."""
    driver = slots()
    driver.admit(**FULL)
    driver.queue(**FULL)
    for number in range(100):
        driver.refuse(**key(f"k{number}"))
        driver.pass_s(100.0)
    calendar = driver.gate._books.calendar
    assert calendar.outstanding == 0
    assert calendar.due_in("standard") == 0
    assert calendar.claimed == pytest.approx(0.25, abs=0.02)


def test_waiter_that_left_may_come_back_to_its_place() -> None:
    """A client that timed out while it queued keeps its order for a while."""
    driver = slots()
    running = driver.admit(**FULL).ticket
    waiting = driver.queue(**key("k")).ticket
    arrived = driver.now
    driver.now += 5.0
    driver.cancel(waiting)
    back = driver.queue(**key("k", 2))
    assert driver.gate._books.queue.waiters[back.ticket].order == arrived
    driver.release(running)


def test_tenants_are_bounded_and_eviction_forgives_nobody() -> None:
    """Offenders are kept; when nobody may be forgotten, strangers share one record."""
    options = GateOptions(max_tenants=5, default_tenant=TenantLimits(requests_per_s=0.001, request_burst=2.0))
    tenants = Tenants(options)
    for number in range(5):
        offender = tenants.get(f"offender{number}", T0)
        assert offender.quota is not None
        offender.quota.charge(1.0, None, T0)
    strangers = {id(tenants.get(f"stranger{number}", T0)) for number in range(100)}
    assert len(strangers) == 1
    assert tenants.get("stranger7", T0).name == OVERFLOW
    assert len(tenants) == 5
    spent = tenants.get("offender0", T0).quota
    assert spent is not None
    assert spent.requests is not None
    assert spent.requests.free() == pytest.approx(1.0)
    later = T0 + 1e6
    assert tenants.get("stranger7", later).name == "stranger7"
    assert len(tenants) == 5
    assert len(tenants.all()) == 6


def test_a_million_tenants_stay_within_the_bound() -> None:
    """Idle strangers replace each other (ten thousand here; the benchmark runs the million)."""
    driver = Driver(GateOptions(max_tenants=100))
    for number in range(10_000):
        driver.cancel(driver.offer(f"t{number}").ticket)
    assert len(driver.gate._books.tenants) <= 100


def test_sessions_remembered_are_bounded_and_end() -> None:
    """A conversation is under way for some minutes after its last answer."""
    tenants = Tenants(GateOptions())
    tenants.note_session("t", "s", T0)
    assert tenants.is_under_way("t", "s", T0 + 100)
    assert not tenants.is_under_way("t", "s", T0 + 1000)
    for number in range(10_050):
        tenants.note_session("t", str(number), T0)
    assert len(tenants._sessions) == 10_000


def test_estimates_learn_from_reported_usage() -> None:
    """What a release reports, the next estimate knows."""
    driver = Driver(wide(capacity_tokens=10**6))
    before = driver.gate.estimate_prompt_tokens("t", "m", 3000, 0)
    for _ in range(30):
        ticket = driver.admit(prompt_tokens=1000, model="m", ascii_bytes=3000).ticket
        driver.release(ticket, prompt_tokens=1500, output_tokens=10)
    assert before == pytest.approx(1000)
    assert driver.gate.estimate_prompt_tokens("t", "m", 3000, 0) > 1400


def test_failures_and_departures_teach_no_lengths() -> None:
    """A wave of errors does not make answers look short, nor the server fast."""
    driver = Driver(wide(capacity_tokens=10**6))
    for ending in (Ending.FAILED, Ending.ABANDONED):
        for _ in range(60):
            driver.release(driver.admit().ticket, ending, output_tokens=1)
    assert not driver.gate._books.lengths.is_known
    assert not driver.gate._books.rate.is_timed


def test_embeddings_hold_their_prompt_only() -> None:
    """Nothing is generated, nothing is predicted."""
    driver = Driver()
    admit = driver.admit(generates=False, prompt_tokens=100, sequences=3)
    assert admit.predicted_output_tokens == 0
    assert driver.instance.ledger.peak_tokens() == pytest.approx(101.5)
    assert driver.release(admit.ticket, prompt_tokens=90) == []


def test_prefill_rate_is_measured_over_whole_seconds_and_bounds_what_is_unread() -> None:
    """A counter that jumps by whole prompts does not look fast; one that restarted says nothing."""
    driver = Driver(wide(capacity_tokens=10**6))
    for elapsed_s, counter in ((0.0, 0), (0.5, 9000), (0.5, 10_000), (0.1, 19_000), (0.9, 20_000)):
        driver.now += elapsed_s
        driver.read(0.0, prompt_tokens=counter)
    assert driver.instance.prefill.rate == pytest.approx(10_000)
    driver.now += 1.0
    driver.read(0.0, prompt_tokens=10)
    driver.now += 1.0
    driver.read(0.0, prompt_tokens=None)
    driver.now += 1.0
    driver.read(0.0, prompt_tokens=20)
    assert driver.instance.prefill.rate == pytest.approx(10_000, rel=0.02)
    driver.admit(prompt_tokens=15_000)
    driver.queue(prompt_tokens=6000)
    driver.progress(1, 1)
    assert driver.pass_s(0.1) == [2]


def test_a_full_engine_is_looked_at_again_with_a_fresh_reading() -> None:
    """Its queue may be gone long before the next regular reading."""
    driver = Driver()
    driver.admit()
    driver.read(0.1, waiting=5, running=1)
    driver.queue()
    assert driver.step.wants_reading


def test_two_first_attempts_with_one_body_share_a_slot_and_a_passed_one_is_replaced() -> None:
    """Without a key or a declared retry nobody is early; the wait told for this body stands."""
    driver = slots()
    driver.admit(**FULL)
    driver.queue(**FULL)
    told = [driver.refuse(digest=b"same", **FULL).retry_after_s or 0.0 for _ in range(2)]
    assert told[0] == pytest.approx(told[1])
    assert driver.gate._books.calendar.outstanding == 1
    driver.now += told[0]
    assert (driver.refuse(digest=b"same", **FULL).retry_after_s or 0.0) > 0
    assert driver.gate._books.calendar.outstanding == 1


def test_a_place_is_kept_once_and_within_the_bound() -> None:
    """Leaving again and again books nothing more."""
    driver = slots(seats=4, max_booked_per_tenant=1)
    driver.admit(**FULL)
    for name in ("a", "b"):
        driver.cancel(driver.queue(**key(name)).ticket)
    assert driver.gate._books.calendar.outstanding == 1
    calendar = driver.gate._books.calendar
    (slot,) = calendar._by_key.values()
    calendar.claim(slot)
    calendar.claim(slot)
    assert calendar.outstanding == 0


def test_overdue_head_without_a_sequence_to_spare_is_not_passed_for_ever() -> None:
    """Where the engine's bound on sequences is what holds it, the higher class makes way."""
    driver = Driver(wide(max_sequences=4, capacity_tokens=10**6))
    running = [driver.admit("v", "vip").ticket for _ in range(4)]
    batch = driver.queue("b", "batch", sequences=2, latest_start_at=driver.now + 500).ticket
    driver.pass_s(31.0)
    for _ in range(6):
        driver.offer("v", "vip", latest_start_at=driver.now + 500)
        granted = driver.release(running.pop(0))
        if batch in granted:
            break
        running += granted
    assert batch in driver.gate._books.running


def test_overdue_head_of_one_instance_holds_no_other_back() -> None:
    """Starvation is a matter between those who want the same engine."""
    driver = Driver(wide(max_sequences=1))
    for name in ("a", "b"):
        driver.gate.observe([Reading(kv_usage=0.1, instance=name)], driver.now, half)
    driver.admit("v", "vip", instance="a")
    driver.queue("s", instance="a", latest_start_at=driver.now + 500)
    driver.now += 25.0
    for _ in range(8):
        started = driver.admit("v", "vip", instance="b")
        driver.release(started.ticket)


def test_heaps_stay_small_however_often_turns_change() -> None:
    """Entries out of date are dropped before they outgrow what they describe."""
    driver = Driver(wide())
    big = driver.admit("big", prompt_tokens=900, max_output_tokens=95)
    driver.queue("s", latest_start_at=driver.now + 1e6)
    band = driver.gate._books.queue.by_name["standard"]
    for number in range(2000):
        flow = driver.gate._books.tenants.get("s", driver.now).flows["standard"]
        band.charge(flow, 1.0)
        driver.cancel(driver.offer(f"t{number % 7}", latest_start_at=driver.now + 1e6).ticket)
    queue = driver.gate._books.queue
    for _ in range(300):
        band.charge(flow, 1.0)
    assert max(len(band._heap), len(band._heavy), len(queue._expiries)) < 200
    assert driver.release(big.ticket) != []


def test_a_third_tenant_may_pass_when_the_first_two_may_not() -> None:
    """Behind a blocked head the next tenants are asked in turn."""
    driver = Driver(wide())
    driver.admit("x", prompt_tokens=500, max_output_tokens=300)
    driver.queue("head", prompt_tokens=650, max_output_tokens=50)
    driver.queue("second", prompt_tokens=600, max_output_tokens=900)
    driver.now += 0.1
    driver.admit("third", prompt_tokens=5, max_output_tokens=10)


def test_room_is_judged_by_bytes_too_and_spares_the_promised() -> None:
    """A full house of bytes refuses; one that came back on time is not the one to go."""
    driver = Driver(
        GateOptions(
            kv=wide().kv,
            queue=QueueOptions(max_requests=100, max_bytes=100),
            classes=(ClassOptions(name="standard", max_wait_s=1e6, max_queued=2),),
        )
    )
    big = driver.admit(prompt_tokens=900, max_output_tokens=95)
    driver.queue(body_bytes=60)
    assert driver.gate.precheck("t", "standard", driver.now, half) is None
    driver.queue("u", body_bytes=40)
    refusal = driver.gate.precheck("u", "standard", driver.now, half)
    assert refusal is not None
    assert refusal.reason is Reason.QUEUE_FULL
    assert driver.refuse("w", body_bytes=0).reason is Reason.QUEUE_FULL
    driver.release(big.ticket)


def test_prefill_bound_that_came_from_demand_gives_way_to_an_engine_without_a_queue() -> None:
    """Light traffic shows a low rate, not believed; while the engine queues nothing, the bound grows."""
    driver = Driver(wide(capacity_tokens=10**6))
    for counter in (0, 100):
        driver.read(0.0, prompt_tokens=counter, waiting=0)
        driver.now += 1.0
    driver.admit(prompt_tokens=4000)
    driver.admit(prompt_tokens=4000)
    driver.queue(prompt_tokens=4000)
    started: list[int] = []
    for _ in range(5):
        driver.now += 0.1
        driver.pass_s(0.0)
        started += driver.read(0.0, prompt_tokens=100, waiting=0, running=1)
    assert started == [3]
