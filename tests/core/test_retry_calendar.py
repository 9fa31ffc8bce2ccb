"""When a refused caller may come back, and what its return is worth."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tests.core.driver import FILL, Driver, half, wide
from tidegate.core.decisions import Reason
from tidegate.core.options import CalendarOptions, ClassOptions, GateOptions, KvOptions, QueueOptions
from tidegate.core.retry_calendar import EARLY_S, RetryCalendar
from tidegate.core.tenants import Tenants


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


def key(name: str, attempt: int = 1) -> dict[str, Any]:
    """What a keyed request carries."""
    return {"identity": name, "is_keyed": True, "digest": name.encode(), "attempt": attempt, **FILL}


def test_every_refused_caller_gets_a_slot_of_its_own() -> None:
    """Waits differ by the spacing, and none is told twice."""
    driver = slots()
    driver.admit(**FILL)
    driver.queue(**FILL)
    waits = [driver.refuse(**key(f"k{number}")).retry_after_s or 0.0 for number in range(8)]
    gaps = [after - before for before, after in itertools.pairwise(waits)]
    assert min(gaps) > 1.0


def test_told_waits_stand_when_the_rate_changes() -> None:
    """Only new slots move; an early return is refused with what is left of the wait it had."""
    driver = slots()
    running = driver.admit(**FILL).ticket
    waiting = driver.queue(**FILL).ticket
    told = driver.refuse(**key("k")).retry_after_s
    assert told is not None
    for _ in range(5):
        driver.now += 0.1
        driver.release(running)
        running, waiting = waiting, driver.offer(**FILL).ticket
    early = driver.refuse(**key("k", 2))
    assert early.reason is Reason.TOO_EARLY
    assert early.retry_after_s == pytest.approx(told - 0.5)
    again = driver.refuse(**key("k", 3))
    assert again.retry_after_s == pytest.approx(told - 0.5)


def test_early_return_is_admitted_when_nothing_waits_and_it_fits() -> None:
    """An idle server turns nobody away for being early."""
    driver = slots()
    running = driver.admit(**FILL).ticket
    waiting = driver.queue(**FILL).ticket
    driver.refuse(**key("k"))
    driver.cancel(waiting)
    driver.release(running)
    driver.admit(**key("k", 2))
    assert driver.gate._books.calendar.outstanding == 0


def test_return_on_time_keeps_its_order_and_goes_before_newcomers() -> None:
    """The seat was kept for it, and its arrival counts from the first attempt."""
    driver = slots(seats=2)
    running = driver.admit(**FILL).ticket
    waiting = [driver.queue(**FILL).ticket for _ in range(2)]
    told = driver.refuse(**key("k")).retry_after_s
    assert told is not None
    driver.now += told
    assert driver.release(running) == waiting[:1]
    assert driver.refuse("newcomer", **FILL).reason is Reason.QUEUE_FULL
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
    running = driver.admit(**FILL).ticket
    driver.queue(**FILL)
    told = driver.refuse(**FILL).retry_after_s
    assert told is not None
    driver.now += told
    driver.release(running)
    back = driver.queue(attempt=2, **FILL)
    assert driver.gate._books.queue.waiters[back.ticket].is_returning


def test_waits_beyond_the_cap_take_no_slot() -> None:
    """They are spread over the last 15 % before the cap, and so beyond a tenant's bound."""
    driver = slots(max_retry_after_s=20.0, max_booked_per_tenant=2)
    driver.admit(**FILL)
    driver.queue(**FILL)
    waits = [driver.refuse(**key(f"k{number}")).retry_after_s or 0.0 for number in range(6)]
    assert driver.gate._books.calendar.outstanding <= 2
    assert waits[-3:] == pytest.approx([20 * 0.925] * 3)


def test_unclaimed_slots_lapse_and_teach_how_many_are_used() -> None:
    """The spacing shrinks when few come back, not below a quarter."""
    driver = slots()
    driver.admit(**FILL)
    driver.queue(**FILL)
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
    running = driver.admit(**FILL).ticket
    waiting = driver.queue(**key("k")).ticket
    arrived = driver.now
    driver.now += 5.0
    driver.cancel(waiting)
    back = driver.queue(**key("k", 2))
    assert driver.gate._books.queue.waiters[back.ticket].order == arrived
    driver.release(running)


def test_two_first_attempts_with_one_body_share_a_slot_and_a_passed_one_is_replaced() -> None:
    """Without a key or a declared retry nobody is early; the wait told for this body stands."""
    driver = slots()
    driver.admit(**FILL)
    driver.queue(**FILL)
    told = [driver.refuse(digest=b"same", **FILL).retry_after_s or 0.0 for _ in range(2)]
    assert told[0] == pytest.approx(told[1])
    assert driver.gate._books.calendar.outstanding == 1
    driver.now += told[0]
    assert (driver.refuse(digest=b"same", **FILL).retry_after_s or 0.0) > 0
    assert driver.gate._books.calendar.outstanding == 1


def test_a_place_is_kept_once_and_within_the_bound() -> None:
    """Leaving again and again books nothing more."""
    driver = slots(seats=4, max_booked_per_tenant=1)
    driver.admit(**FILL)
    for name in ("a", "b"):
        driver.cancel(driver.queue(**key(name)).ticket)
    assert driver.gate._books.calendar.outstanding == 1
    calendar = driver.gate._books.calendar
    (slot,) = calendar._by_key.values()
    calendar.claim(slot)
    calendar.claim(slot)
    assert calendar.outstanding == 0


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
