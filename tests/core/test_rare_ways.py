"""Ways through the core that an ordinary day does not take: each is taken once, and leads where it should."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.decisions import Admit, Ask, InvalidAsk, Reason, Refuse
from tidegate.core.flow import Flow
from tidegate.core.gate import Gate
from tidegate.core.lengths import LengthModel
from tidegate.core.line import COMPACT_ABOVE, Waiter
from tidegate.core.options import (
    CalendarOptions,
    ClassOptions,
    GateOptions,
    KvOptions,
    QueueOptions,
    TenantLimits,
)
from tidegate.core.quota import Quota
from tidegate.core.reading import Reading, vouched_reading
from tidegate.core.retry_calendar import EARLY_S, RetryCalendar
from tidegate.core.tenants import Tenants
from tidegate.core.turns import Turns


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("prompt_tokens", math.nan),
        ("attempt", 0),
        ("max_output_tokens", -1),
        ("latest_start_at", math.nan),
        ("deadline_at", math.nan),
    ],
)
def test_absurd_ask_is_told_which_figure_it_is(figure: str, value: float) -> None:
    """Whatever else is missing, the message names the culprit."""
    with pytest.raises(InvalidAsk, match=f"^{figure} is "):
        Ask(**{"ticket": 1, "tenant": "t", "priority_class": "c", "prompt_tokens": 1, figure: value})  # type: ignore[arg-type]


def test_vouched_reading_is_the_reading_of_its_figures() -> None:
    """One figure for each field, in their order."""
    figures: tuple[Any, ...] = (0.5, 1, 2, 3, 4, 5, 6, 7.0, 8.0, 9.0, 10, True, "x")
    fields: dict[str, Any] = dict(zip(Reading.__slots__, figures, strict=True))
    assert vouched_reading(figures) == Reading(**fields)


def test_a_named_booking_that_is_due_opens_the_door_for_a_look() -> None:
    """Whoever comes back with its name is not refused before its body has shown the name."""
    quota = Quota.of(TenantLimits(requests_per_s=1.0, request_burst=1.0), 10, 0.0)
    assert quota is not None
    assert quota.charge(1.0, None, 0.0) is None
    refused = quota.charge(1.0, "name", 0.0)
    assert refused is not None
    assert quota.peek(1.0, 0.0) is not None
    assert quota.peek(1.0, refused.retry_after_s) is None


def test_shell_is_woken_for_a_waiter_that_may_not_wait_until_the_next_look() -> None:
    """Its last instant comes before the look that is planned."""
    d = Driver(wide())
    d.read(0.0)
    d.admit(prompt_tokens=900)
    d.queue(latest_start_at=d.now + 0.005)
    assert d.step.wake_at == d.now + 0.005


def test_whoever_left_is_not_turned_away_when_its_time_has_come() -> None:
    """An expiry of one that is gone is passed over."""
    d = Driver(wide())
    d.read(0.0)
    d.admit(prompt_tokens=900)
    stays = d.queue(latest_start_at=d.now + 1.0)
    leaves = d.queue(latest_start_at=d.now + 1.5)
    d.cancel(leaves.ticket)
    d.pass_s(2.0)
    assert [refusal.ticket for refusal in d.step.refusals] == [stays.ticket]


def test_what_the_shell_may_ask_at_any_time() -> None:
    """Bytes held by those who wait, and what is left of a quota."""
    limits = TenantLimits(requests_per_s=1.0, request_burst=3.0)
    options = GateOptions(kv=KvOptions(max_sequences=1), tenants={"metered": limits})
    d = Driver(options)
    d.read(0.0)
    d.admit("metered")
    d.queue("metered", body_bytes=70)
    assert d.gate.queued_bytes == 70
    [left] = d.gate.quota_left("metered", d.now)
    assert (left.name, left.remaining) == ("requests", 1.0)
    assert d.gate.quota_left("t", d.now) == ()
    d.gate.caller_gone(999, d.now)
    d.gate.sending_blocked(999, True, d.now)
    assert d.gate.statistics(d.now).running == 1


def test_full_room_refuses_early_where_nobody_could_give_way() -> None:
    """All seats are a higher class's: a lower one hears it before its body is read."""
    d = Driver(
        GateOptions(
            kv=KvOptions(max_sequences=1),
            queue=QueueOptions(max_requests=2),
            classes=(ClassOptions(name="vip"), ClassOptions(name="batch")),
            default_tenant=TenantLimits(priority_class="batch"),
        )
    )
    d.read(0.0)
    d.admit("a", "vip")
    waiting = [d.queue(tenant, "vip").ticket for tenant in "bc"]
    refused = d.gate.precheck("z", "batch", d.now, half)
    assert refused is not None
    assert refused.reason is Reason.QUEUE_FULL
    for ticket in waiting:
        d.cancel(ticket)
    assert d.gate.precheck("z", "batch", d.now, half) is None
    d.queue("x", "vip")
    d.queue("y", "vip")
    refused = d.gate.precheck("z", "vip", d.now, half)
    assert refused is not None, "those who left are no longer the heaviest"


def test_tenant_that_runs_is_not_forgotten() -> None:
    """However many strangers come."""
    tenants = Tenants(GateOptions(max_tenants=1))
    busy = tenants.get("busy", 0.0)
    busy.running = 1
    assert tenants.get("stranger", 0.0).name != "stranger"
    assert tenants.get("busy", 0.0) is busy


def test_slot_claimed_before_it_fell_due_is_cleared_away() -> None:
    """It keeps no seat."""
    calendar = RetryCalendar(CalendarOptions())
    flow = Driver(wide()).gate._books.queue.flow(Tenants(GateOptions()).get("t", 0.0), "standard")
    wait_s = calendar.book(flow, ("t", "name"), 0.0, 10.0, 1.0, 0.0, half)
    slot = calendar.find(flow, ("t", "name"), is_retry=True, now=0.0)
    assert slot is not None
    calendar.claim(slot)
    calendar.claim(slot)
    assert calendar.next_at < 0.0, "there is something to clear away"
    calendar.advance(wait_s - EARLY_S)
    assert calendar.due_in("standard") == 0
    assert calendar.next_at == math.inf


def _waiters(flow: Flow, count: int) -> list[Waiter]:
    asks = [
        Ask(ticket=n, tenant="t", priority_class="standard", prompt_tokens=1, end_user="u")
        for n in range(count)
    ]
    kinds = LengthModel.kinds(None, None)
    return [
        Waiter(ask, flow, float(ask.ticket), 0.0, 0.0, 9.0, kinds, 0.5, 0.0, sequence=ask.ticket)
        for ask in asks
    ]


def test_what_is_out_of_date_among_end_users_is_bounded() -> None:
    """Whoever comes and goes at once leaves nothing behind for ever."""
    flow = Driver(wide()).gate._books.queue.flow(Tenants(GateOptions()).get("t", 0.0), "standard")
    first, *others = _waiters(flow, 200)
    turns = Turns([first])
    for waiter in others:
        turns.seat(waiter)
        turns.settled("u", 1.0)
        turns.leave(waiter.ask.ticket)
    [line] = turns._lines.values()
    assert len(line._heap) <= COMPACT_ABOVE + 3
    assert len(turns._order) <= COMPACT_ABOVE + 3
    assert turns.head() is first


def test_keyed_request_without_a_body_to_compare_supersedes_nobody() -> None:
    """The key alone does not show that it is the same request."""
    gate = Gate(wide(), 0.0)
    gate.observe([Reading(kv_usage=0.0)], 0.0, half)
    first = Ask(ticket=1, tenant="t", priority_class="vip", prompt_tokens=1, identity="k", is_keyed=True)
    assert isinstance(gate.offer(first, 0.0, half).decision, Admit)
    gate.caller_gone(1, 0.0)
    again = Ask(ticket=2, tenant="t", priority_class="vip", prompt_tokens=1, identity="k", is_keyed=True)
    step = gate.offer(again, 0.0, half)
    assert not isinstance(step.decision, Refuse)
    assert step.cancelled == ()
