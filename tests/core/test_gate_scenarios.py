"""The gate over named instants: who starts, who waits, who is refused, and when to look again."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.decisions import Admit, Ask, Ending, InvalidAsk, Queued, Reason, Refuse, Settlement
from tidegate.core.gate import Gate
from tidegate.core.options import (
    BackoffOptions,
    ClassOptions,
    GateOptions,
    KvOptions,
    QueueOptions,
    SignalOptions,
    TenantLimits,
)
from tidegate.core.reading import InvalidReading, Reading


def small(**queue: Any) -> GateOptions:
    """One lease of 90 of 100 tokens at a time, and a small room."""
    return GateOptions(
        kv=KvOptions(capacity_tokens=100, margin=0.0, margin_min=0.0, high_watermark=1.0, block_tokens=1),
        queue=QueueOptions(**{"max_requests": 4, **queue}),
        classes=(
            ClassOptions(name="vip", max_wait_s=60.0),
            ClassOptions(name="standard", max_wait_s=60.0, starvation_s=50.0),
            ClassOptions(name="batch", max_wait_s=60.0, starvation_s=50.0),
        ),
        default_tenant=TenantLimits(max_queued=4),
    )


FILL: dict[str, Any] = {"prompt_tokens": 10, "max_output_tokens": 80}


def test_burst_between_two_samples_sees_its_own_weight() -> None:
    """A thousand requests at one instant: only as many start as fit by their future peak."""
    driver = Driver()
    driver.read(0.0)
    started = sum(isinstance(driver.offer(), Admit) for _ in range(100))
    assert started == 9, "ten requests of 10 + 90 tokens fill 1,000; half a block each is kept"


def test_lone_request_always_starts_and_is_clamped() -> None:
    """A declared maximum of 64k on a small engine is a habit, not a refusal."""
    driver = Driver()
    admit = driver.admit(prompt_tokens=600, max_output_tokens=64_000)
    assert admit.predicted_output_tokens == 400


@pytest.mark.parametrize(
    ("floor", "sequences", "context", "permanent"),
    [
        (1001, 1, None, True),
        (1000, 1, None, False),
        (3000, 3, None, False),
        (500, 1, 500, True),
        (499, 1, 500, False),
    ],
)
def test_only_what_is_certain_is_refused_for_good(
    floor: int, sequences: int, context: int | None, permanent: bool
) -> None:
    """A prompt whose certain part exceeds the cache or the context; never an estimate."""
    driver = Driver(wide(max_model_tokens=context))
    decision = driver.offer(prompt_tokens=5000, prompt_tokens_floor=floor, sequences=sequences)
    assert isinstance(decision, Refuse) == permanent
    if isinstance(decision, Refuse):
        assert decision.reason is Reason.PROMPT_TOO_LARGE
        assert decision.is_permanent
        assert str(floor) in decision.detail


def test_release_starts_the_next_in_order_and_only_once() -> None:
    """A lease that ends hands over; ending it again changes nothing."""
    driver = Driver(small())
    first = driver.admit(**FILL)
    second, third = driver.queue(**FILL), driver.queue(**FILL)
    assert (second.position, third.position) == (1, 2)
    assert driver.release(first.ticket) == [second.ticket]
    assert driver.release(first.ticket) == []
    assert driver.release(second.ticket) == [third.ticket]


def test_cancel_frees_the_seat_or_the_lease_and_knows_no_strangers() -> None:
    """A waiter that leaves is gone; one just granted hands over; an unknown ticket is nothing."""
    driver = Driver(small())
    first = driver.admit(**FILL)
    second, third = driver.queue(**FILL), driver.queue(**FILL)
    assert driver.cancel(second.ticket) == []
    assert driver.cancel(second.ticket) == []
    assert driver.cancel(first.ticket) == [third.ticket]
    assert driver.cancel(987) == []
    assert driver.gate.statistics(driver.now).running == 1


def test_waits_until_its_last_instant_and_not_beyond() -> None:
    """At the deadline itself it may still start; after it, it is told so with a wait."""
    driver = Driver(small())
    first = driver.admit(**FILL)
    last = driver.queue(latest_start_at=driver.now + 5.0, **FILL)
    assert driver.step.wake_at is not None
    assert driver.step.wake_at <= driver.now + 5.0
    driver.now += 5.0
    assert driver.release(first.ticket) == [last.ticket]
    driver.queue(latest_start_at=driver.now + 5.0, **FILL)
    driver.pass_s(5.0)
    (refusal,) = driver.step.refusals
    assert refusal.reason is Reason.WAIT_EXPIRED
    assert refusal.waited_s == pytest.approx(5.0)
    assert refusal.retry_after_s is not None
    assert refusal.limit is None  # no number of seats would have helped


def test_a_slot_that_comes_free_too_late_goes_to_the_next() -> None:
    """Whoever may no longer start is let go before anybody starts."""
    driver = Driver(small())
    first = driver.admit(**FILL)
    late = driver.queue(latest_start_at=driver.now + 5.0, **FILL)
    patient = driver.queue(**FILL)
    driver.now += 6.0
    assert driver.release(first.ticket) == [patient.ticket]
    assert [refusal.ticket for refusal in driver.step.refusals] == [late.ticket]


def test_deadline_already_past_is_refused_at_once() -> None:
    """Waiting would waste both sides' time."""
    assert Driver().refuse(latest_start_at=999.0).reason is Reason.WAIT_TOO_LONG


def test_hopeless_wait_is_refused_at_once_when_the_rate_is_measured() -> None:
    """With one completion a second and five ahead, half a second of patience is not enough."""
    driver = Driver(small(max_requests=20))
    running = driver.admit(**FILL).ticket
    waiting = [driver.queue(**FILL).ticket for _ in range(4)]
    for _ in range(4):
        driver.now += 1.0
        (running,) = driver.release(running)
        waiting.append(driver.offer(**FILL).ticket)
    refusal = driver.refuse(latest_start_at=driver.now + 0.5, tenant="other", **FILL)
    assert refusal.reason is Reason.WAIT_TOO_LONG
    assert isinstance(driver.offer("third", latest_start_at=driver.now + 30.0, **FILL), Queued)


def test_vip_goes_first_and_full_room_displaces_the_lowest() -> None:
    """Classes in order; the newest of the lowest class gives way; a full house of equals does not."""
    driver = Driver(small())
    running = driver.admit(**FILL)
    batch = [driver.queue(priority_class="batch", **FILL).ticket for _ in range(4)]
    vip = driver.queue("v", "vip", **FILL)
    (displaced,) = driver.step.refusals
    assert (displaced.ticket, displaced.reason) == (batch[-1], Reason.DISPLACED)
    assert driver.release(running.ticket) == [vip.ticket]
    driver.queue("w", "batch", **FILL)
    refusal = driver.refuse("t", "batch", **FILL)
    assert refusal.reason is Reason.QUEUE_FULL


def test_light_tenant_takes_the_seat_of_the_heaviest() -> None:
    """No tenant fills the room: its newest request gives way to somebody with fewer."""
    driver = Driver(small())
    driver.admit(**FILL)
    heavy = [driver.queue("heavy", **FILL).ticket for _ in range(4)]
    light = driver.offer("light", **FILL)
    assert isinstance(light, Queued)
    assert [refusal.ticket for refusal in driver.step.refusals] == [heavy[-1]]
    assert driver.refuse("heavy", **FILL).reason is Reason.QUEUE_FULL


def test_tenants_own_seats_and_bytes_are_bounded() -> None:
    """The refusal names the bound that bit."""
    options = GateOptions(
        kv=small().kv,
        queue=QueueOptions(max_requests=100, max_bytes=1000),
        tenants={"few": TenantLimits(max_queued=2)},
    )
    driver = Driver(options)
    driver.admit(**FILL)
    driver.queue("few", **FILL)
    driver.queue("few", **FILL)
    refusal = driver.refuse("few", **FILL)
    assert (refusal.reason, refusal.scope, refusal.limit) == (Reason.TENANT_QUEUE_FULL, "tenant", 2.0)
    driver.queue("big", body_bytes=900, **FILL)
    assert driver.refuse("big", body_bytes=200, **FILL).reason is Reason.QUEUE_FULL
    assert driver.gate.statistics(driver.now).queued_bytes == 900


def test_tenant_at_its_cap_blocks_nobody() -> None:
    """A head held back by its own bound is stepped over, and comes up as soon as it may."""
    options = wide()
    options.tenants["capped"] = TenantLimits(max_concurrency=1)
    driver = Driver(options)
    first = driver.admit("capped")
    second = driver.queue("capped")
    driver.admit("other")
    assert driver.release(first.ticket) == [second.ticket]


def test_refusal_costs_nothing() -> None:
    """Whoever leaves the room without having started gets its quota back."""
    options = GateOptions(
        kv=small().kv,
        queue=QueueOptions(max_requests=1),
        default_tenant=TenantLimits(
            requests_per_s=0.001, request_burst=3, tokens_per_s=0.001, token_burst=1000, max_queued=5
        ),
    )
    driver = Driver(options)
    driver.admit(**FILL)
    waiting = driver.queue(**FILL)
    quota = driver.gate._books.tenants.get("t", driver.now).quota
    assert quota is not None
    assert quota.requests is not None
    assert quota.tokens is not None
    assert quota.requests.free() == pytest.approx(1.0)
    assert driver.refuse(**FILL).reason is Reason.QUEUE_FULL
    assert quota.requests.free() == pytest.approx(1.0)
    driver.cancel(waiting.ticket)
    assert quota.requests.free() == pytest.approx(2.0)
    assert quota.tokens.free() == pytest.approx(910.0)


def test_quota_is_charged_by_estimate_and_settled_by_use() -> None:
    """What was not used comes back; what was used beyond is owed; a failure without work costs no tokens."""
    options = wide()
    options.tenants["m"] = TenantLimits(tokens_per_s=0.001, token_burst=1000.0)
    driver = Driver(options)
    quota = driver.gate._books.tenants.get("m", driver.now).quota
    assert quota is not None
    assert quota.tokens is not None
    ticket = driver.admit("m").ticket
    assert quota.tokens.free() == pytest.approx(900)
    driver.release(ticket, prompt_tokens=10, output_tokens=40)
    assert quota.tokens.free() == pytest.approx(950)
    ticket = driver.admit("m").ticket
    driver.release(ticket, prompt_tokens=100, output_tokens=100)
    assert quota.tokens.free() == pytest.approx(750)
    ticket = driver.admit("m").ticket
    driver.release(ticket, Ending.FAILED)
    assert quota.tokens.free() == pytest.approx(750)
    ticket = driver.admit("m").ticket
    driver.progress(ticket, 30)
    driver.release(ticket, Ending.ABANDONED)
    assert quota.tokens.free() == pytest.approx(710)


def test_quota_refusals_name_the_bucket_and_a_prompt_above_the_burst_is_permanent() -> None:
    """Requests and tokens are told apart; what can never fit is said at once."""
    options = wide()
    options.tenants["r"] = TenantLimits(requests_per_s=1.0, request_burst=1.0)
    options.tenants["k"] = TenantLimits(tokens_per_s=10.0, token_burst=100.0)
    driver = Driver(options)
    driver.admit("r")
    refusal = driver.refuse("r")
    assert (refusal.reason, refusal.scope, refusal.retry_after_s) == (Reason.RATE_LIMITED, "tenant", 1.0)
    driver.admit("k")
    assert driver.refuse("k").reason is Reason.TOKEN_RATE_LIMITED
    permanent = driver.refuse("k", prompt_tokens_floor=101)
    assert (permanent.reason, permanent.is_permanent) == (Reason.COST_ABOVE_BURST, True)


def test_above_the_watermark_nothing_starts_and_each_look_wants_a_reading() -> None:
    """Looks come after full jitter up to the cap; a reading below re-opens at once, in order."""
    driver = Driver(wide(high_watermark=0.8))
    running = driver.admit()
    driver.read(0.85, running=1)
    waiting = driver.queue("late")
    looks = []
    for _ in range(12):
        assert driver.step.wake_at is not None
        looks.append(driver.step.wake_at - driver.now)
        assert driver.pass_s(looks[-1]) == []
        assert driver.step.wants_reading
        driver.read(0.85, running=1, generation_tokens=driver.now)
    assert looks[0] == pytest.approx(0.025)
    assert max(looks) == pytest.approx(0.25)
    assert driver.read(0.79, running=1) == [], "hysteresis"
    assert driver.read(0.76, running=1) == [waiting.ticket]
    driver.release(running.ticket)


def test_engines_own_queue_and_its_bound_on_sequences_hold_requests_back() -> None:
    """The queue lives at the door; KV is often not the limit."""
    driver = Driver(wide(max_sequences=3))
    driver.admit(sequences=2)
    driver.admit()
    driver.queue()
    assert driver.gate._cycle.blocked_by is not None
    busy = Driver()
    busy.admit()
    busy.read(0.1, waiting=5, running=1)
    busy.read(0.1, waiting=5, running=1)
    waiting = busy.queue()
    assert busy.read(0.1, waiting=0, running=1) == [waiting.ticket]


def test_waiting_for_another_reason_than_capacity_does_not_close_the_gate() -> None:
    """An adapter being loaded is not a full engine."""
    driver = Driver()
    driver.admit()
    driver.read(0.1, waiting=9, waiting_for_capacity=0, running=1)
    driver.admit()


def test_unread_prompt_is_bounded_with_a_share_kept_for_the_top() -> None:
    """Two seconds of the measured rate may be outstanding, less for classes below the top."""
    options = wide(max_prefill_tokens=100, capacity_tokens=10_000)
    driver = Driver(options)
    driver.gate.precheck("v", "vip", driver.now, half)
    driver.admit(priority_class="batch", prompt_tokens=60)
    queued = driver.queue(priority_class="batch", prompt_tokens=30)
    driver.admit("v", priority_class="vip", prompt_tokens=30)
    driver.progress(1, 1)
    assert driver.pass_s(0.1) == [queued.ticket]


def test_reserve_is_lent_while_nobody_needs_it() -> None:
    """A lower class may fill the cache until somebody above it has been seen."""
    driver = Driver()
    lent = sum(isinstance(driver.offer("b", "batch"), Admit) for _ in range(12))
    kept = Driver()
    kept.gate.precheck("v", "vip", kept.now, half)
    own = sum(isinstance(kept.offer("b", "batch"), Admit) for _ in range(12))
    assert (own, lent) == (4, 9)


def test_blocked_head_is_passed_a_bounded_number_of_times() -> None:
    """Short work slips past while the head keeps its start; eight times, then none."""
    driver = Driver(wide())
    long_one = driver.admit(prompt_tokens=500, max_output_tokens=300)
    head = driver.queue("head", prompt_tokens=600, max_output_tokens=50)
    passed = 0
    for _ in range(12):
        driver.now += 0.06
        passed += isinstance(driver.offer("small", prompt_tokens=5, max_output_tokens=10), Admit)
    assert passed == 8
    driver.cancel(long_one.ticket)
    assert head.ticket in driver.gate._books.running


def test_nobody_passes_who_would_still_be_in_the_way() -> None:
    """Long work behind a blocked head waits, though it would fit now."""
    driver = Driver(wide())
    driver.admit(prompt_tokens=500, max_output_tokens=300)
    driver.queue("head", prompt_tokens=650, max_output_tokens=50)
    driver.now += 1.0
    driver.queue("long", prompt_tokens=60, max_output_tokens=900)


def test_overdue_class_is_promoted_one_dispatch_in_four() -> None:
    """Standard never starves under endless VIP load, and VIP keeps three of four."""
    driver = Driver(small(max_requests=1000))
    options = driver.gate.options
    assert options.classes[1].starvation_s == 50.0
    running = driver.admit("v", "vip", **FILL).ticket
    for _ in range(4):
        driver.queue("s", "standard", **FILL)
    driver.now += 51.0
    order = []
    for step in range(16):
        for tenant in ("v", "w", "x"):
            driver.offer(f"{tenant}{step}", "vip", latest_start_at=driver.now + 1e6, **FILL)
        (running,) = driver.release(running)
        order.append("s" if running in (2, 3, 4, 5) else "v")
    assert "".join(order) == "svvvsvvvsvvvsvvv"


def test_overdue_head_is_judged_at_the_top_ceiling_and_not_passed_for_ever() -> None:
    """A lower ceiling alone does not starve: after three more nobody passes beside whom it would not fit."""
    driver = Driver()
    driver.gate.precheck("v", "vip", driver.now, half)
    vips = [driver.admit("v", "vip").ticket for _ in range(5)]
    batch = driver.queue("b", "batch", prompt_tokens=300, latest_start_at=driver.now + 500)
    driver.pass_s(31.0)
    assert batch.ticket in driver.gate._books.running or driver.gate.statistics(driver.now).queued == 1
    blocked = Driver()
    blocked.gate.precheck("v", "vip", blocked.now, half)
    vips = [blocked.admit("v", "vip").ticket for _ in range(8)]
    batch = blocked.queue("b", "batch", prompt_tokens=300, latest_start_at=blocked.now + 500)
    blocked.pass_s(31.0)
    started = 0
    for _ in range(12):
        blocked.offer("v", "vip")
        blocked.now += 0.1
        granted = blocked.release(vips.pop(0))
        vips += [ticket for ticket in granted if ticket != batch.ticket]
        started += len(granted)
        if batch.ticket in granted:
            break
    assert batch.ticket in blocked.gate._books.running
    assert started <= 5


def test_session_under_way_goes_before_the_same_tenants_new_ones_boundedly() -> None:
    """A conversation's next turn has a head start of some seconds, not for ever."""
    driver = Driver(small(max_requests=100))
    running = driver.admit(session="s", **FILL)
    driver.release(running.ticket)
    running = driver.admit(**FILL)
    old = driver.queue(**FILL)
    driver.now += 6.0
    new = driver.queue(**FILL)
    turn = driver.queue(session="s", **FILL)
    order = []
    ticket = running.ticket
    for _ in range(3):
        (ticket,) = driver.release(ticket)
        order.append(ticket)
    assert order == [old.ticket, turn.ticket, new.ticket]


def test_supersede_needs_key_body_tenant_and_a_caller_that_left() -> None:
    """Only then is the earlier attempt told to stop; its lease ends when its app returns."""
    keyed = {"identity": "k", "is_keyed": True, "digest": b"body"}
    driver = Driver()
    first = driver.admit(**keyed)
    driver.admit(attempt=2, **keyed)
    assert driver.step.cancelled == ()
    driver.release(2)
    driver.gate.caller_gone(first.ticket, driver.now)
    for other in ({**keyed, "digest": b"other"}, {**keyed, "identity": "k2"}, {**keyed, "is_keyed": False}):
        driver.release(driver.admit(**other).ticket)
        assert driver.step.cancelled == ()
    driver.release(driver.admit("stranger", **keyed).ticket)
    assert driver.step.cancelled == ()
    driver.admit(attempt=2, **keyed)
    assert list(driver.step.cancelled) == [first.ticket]
    driver.admit(attempt=3, **keyed)
    assert not driver.step.cancelled, "once is enough"
    third = Driver()
    first = third.admit(**keyed)
    third.gate.caller_gone(first.ticket, third.now)
    third.admit(attempt=2, **keyed)
    assert third.step.cancelled == (first.ticket,)
    assert third.gate.statistics(third.now).running == 2


def test_supersede_past_the_declared_deadline() -> None:
    """A caller that said when it gives up has left by then."""
    keyed = {"identity": "k", "is_keyed": True, "digest": b"body"}
    driver = Driver()
    first = driver.admit(deadline_at=driver.now + 5, **keyed)
    driver.now += 6
    driver.admit(attempt=2, **keyed)
    assert driver.step.cancelled == (first.ticket,)


def test_slow_reader_strands_nothing_but_only_by_the_declared_maximum() -> None:
    """Our own blocked send, and the time a full answer takes: then the engine must be done."""
    driver = Driver()
    ticket = driver.admit().ticket
    driver.progress(ticket, 1)
    driver.gate.sending_blocked(ticket, True, driver.now)
    driver.pass_s(1.0)
    assert driver.instance.ledger.sequences == 1
    driver.pass_s(1.0)
    assert driver.instance.ledger.sequences == 0
    driver.gate.sending_blocked(ticket, False, driver.now)
    driver.release(ticket)
    assert driver.gate.statistics(driver.now).running == 0


@pytest.mark.parametrize(
    ("kv", "declared", "after_s"),
    [
        ({}, None, 20.0),  # 1,000 tokens of cache at 50 tokens a second
        ({}, 10_000, 20.0),
        ({"max_model_tokens": 200}, None, 4.0),
        ({"max_model_tokens": 200, "capacity_tokens": None}, 10_000, 4.0),
        ({"capacity_tokens": None}, 10_000, 200.0),
        ({"capacity_tokens": None}, None, math.inf),
    ],
)
def test_a_slow_reader_of_an_endless_answer_strands_nothing_either(
    kv: dict[str, Any], declared: int | None, after_s: float
) -> None:
    """No answer is longer than the context or the cache; where neither is known, nothing is certain."""
    driver = Driver(wide(**kv))
    ticket = driver.admit(max_output_tokens=declared).ticket
    driver.progress(ticket, 1)
    driver.gate.sending_blocked(ticket, True, driver.now)
    driver.pass_s(min(0.95 * after_s, 1e5))
    assert driver.instance.ledger.sequences == 1
    driver.pass_s(min(0.1 * after_s, 1e5))
    assert driver.instance.ledger.sequences == (after_s == math.inf)


def test_a_slow_reader_of_what_is_not_generated_strands_nothing() -> None:
    """Embeddings are computed before they are sent: whoever does not fetch them holds nothing."""
    driver = Driver()
    slow = [driver.admit(generates=False, prompt_tokens=300).ticket for _ in range(3)]
    waiting = driver.queue(prompt_tokens=300)
    assert driver.pass_s(30.0) == []
    for ticket in slow:
        driver.gate.sending_blocked(ticket, True, driver.now)
    assert driver.pass_s(0.2) == [waiting.ticket]
    assert driver.instance.ledger.sequences == 1
    assert driver.instance.ledger.unread_prompt == 300
    for ticket in slow:
        driver.release(ticket)
    assert driver.gate.statistics(driver.now).running == 1


def test_whole_answers_are_carried_forward_by_the_engines_pace() -> None:
    """An answer in one piece shows nothing; the ledger still moves on."""
    driver = Driver()
    driver.admit(streams=False, max_output_tokens=100)
    lease = driver.instance.ledger.leases[1]
    driver.pass_s(1.0)
    assert lease.seen == pytest.approx(50 / 1.1)
    driver.pass_s(100.0)
    assert lease.seen == 99, "one that shows nothing has not ended before its release"
    assert lease.left == 1


def test_progress_that_outlives_the_prediction_grows_what_is_left() -> None:
    """It never counts as zero."""
    driver = Driver(wide(capacity_tokens=100_000))
    driver.admit(max_output_tokens=None)
    lease = driver.instance.ledger.leases[1]
    driver.progress(1, 5000)
    assert lease.left > 30
    assert lease.seen == 5000
    driver.progress(1, 10)
    assert lease.seen == 5000
    driver.progress(99, 10)


def test_time_backwards_and_nonsense_change_nothing() -> None:
    """One clock; an operation in the past happens now; NaN does not move it."""
    driver = Driver(small())
    first = driver.admit(**FILL)
    second = driver.queue(latest_start_at=driver.now + 5.0, **FILL)
    for instant in (driver.now - 100, float("nan"), float("-inf"), float("inf")):
        driver.gate.advance(instant, half)
    assert driver.gate._now == driver.now
    assert driver.release(first.ticket) == [second.ticket]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e13])
@pytest.mark.parametrize("name", ["prompt_tokens", "max_output_tokens", "sequences", "body_bytes", "attempt"])
def test_absurd_figures_of_an_ask_are_refused_with_their_name(name: str, value: float) -> None:
    """The error names the field and the value, and nothing has changed."""
    driver = Driver()
    with pytest.raises(InvalidAsk, match=name):
        driver.offer(**cast("Any", {name: value}))
    assert driver.gate.statistics(driver.now).running == 0


def test_unknown_class_ticket_in_use_and_bad_progress_are_refused() -> None:
    """Typed errors; the books stay as they were."""
    driver = Driver()
    with pytest.raises(InvalidAsk, match="platinum"):
        driver.offer(priority_class="platinum")
    with pytest.raises(InvalidAsk, match="platinum"):
        driver.gate.precheck("t", "platinum", driver.now, half)
    driver.admit(ticket=7)
    with pytest.raises(InvalidAsk, match="7"):
        driver.offer(ticket=7)
    for tokens in (float("nan"), -1.0, float("inf")):
        with pytest.raises(InvalidAsk, match="output_tokens"):
            driver.gate.progress(7, tokens, driver.now)
    for name in ("latest_start_at", "deadline_at"):
        with pytest.raises(InvalidAsk, match=name):
            driver.offer(**cast("Any", {name: math.nan}))
    assert driver.gate.statistics(driver.now).running == 1


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


def test_precheck_refuses_cheaply_and_lets_through_whom_a_seat_is_kept_for() -> None:
    """Full seats are said before the body is read; nothing is charged."""
    driver = Driver(small())
    driver.admit(**FILL)
    for _ in range(4):
        driver.queue(**FILL)
    refusal = driver.gate.precheck("t", "standard", driver.now, half)
    assert refusal is not None
    assert (refusal.ticket, refusal.reason) == (0, Reason.TENANT_QUEUE_FULL)
    assert driver.gate.precheck("light", "standard", driver.now, half) is None, "it would displace"
    assert driver.gate.precheck("light", "vip", driver.now, half) is None
    assert refusal.retry_after_s is not None
    driver.pass_s(refusal.retry_after_s)
    assert driver.gate.precheck("t", "standard", driver.now, half) is None


def test_precheck_knows_quota_and_sleep() -> None:
    """An empty bucket and a sleeping engine need no body."""
    options = wide()
    options.tenants["r"] = TenantLimits(requests_per_s=1.0, request_burst=1.0)
    driver = Driver(options)
    driver.admit("r")
    refusal = driver.gate.precheck("r", "standard", driver.now, half)
    assert refusal is not None
    assert refusal.reason is Reason.RATE_LIMITED
    driver.read(0.0, asleep=True)
    asleep = driver.gate.precheck("x", "standard", driver.now, half)
    assert asleep is not None
    assert asleep.reason is Reason.ASLEEP


def test_statistics_are_a_frozen_picture() -> None:
    """Every part of the gate is in it, and it does not change afterwards."""
    driver = Driver(small())
    driver.admit(**FILL)
    driver.queue("w", "vip", body_bytes=11, **FILL)
    driver.read(0.9, running=1, waiting=2, preemptions=3)
    picture = driver.gate.statistics(driver.now + 1)
    assert (picture.running, picture.queued, picture.queued_bytes, picture.admitted) == (1, 1, 11, 1)
    (instance,) = picture.instances
    assert (instance.state, instance.level, instance.leases) == ("fresh", 0.9, 1)
    assert (instance.waiting_in_engine, instance.running_in_engine, instance.preemptions) == (2, 1, 3)
    assert [entry.name for entry in picture.classes] == ["vip", "standard", "batch"]
    assert {entry.name for entry in picture.tenants} == {"t", "w"}
    driver.release(1)
    assert picture.running == 1
    assert driver.gate.statistics(driver.now).is_open


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


def test_slow_tokens_lower_the_bound_on_what_runs_at_once() -> None:
    """With a target for the time between tokens, concurrency gives way to it."""
    driver = Driver(wide(capacity_tokens=10**6, target_inter_token_s=0.05))
    tickets = [driver.admit().ticket for _ in range(10)]
    for tokens in range(1, 6):
        driver.now += 1.0
        for ticket in tickets:
            driver.progress(ticket, tokens)
    driver.queue()
    assert driver.instance.max_sequences == 6


def test_outlook_is_the_place_among_ones_own_and_nobody_elses() -> None:
    """Who waits may ask again how long; who does not wait gets no answer."""
    driver = Driver(small(max_requests=100))
    driver.release(driver.admit(**FILL).ticket)
    running = driver.admit(**FILL).ticket
    first, second = driver.queue(**FILL).ticket, driver.queue(**FILL).ticket
    ahead, behind = (driver.gate.outlook(ticket, driver.now) for ticket in (first, second))
    assert ahead is not None
    assert behind is not None
    assert (ahead[0], behind[0]) == (1, 2)
    assert ahead[1] is not None
    assert behind[1] is not None
    assert ahead[1] < behind[1]
    assert driver.gate.outlook(running, driver.now) is None
