"""The gate over named instants: who starts, who waits, who leaves, and when to look again."""

from __future__ import annotations

import pytest

from tests.core.driver import FILL, Driver, small, wide
from tidegate.core.decisions import Queued, Reason
from tidegate.core.options import GateOptions, KvOptions, TenantLimits


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


def test_expected_length_of_the_answer_shortens_the_wait_of_who_needs_it_whole() -> None:
    """At 0.1 s per token 90 tokens take nine seconds."""
    driver = Driver(wide())
    driver.read(0.0)
    ticket = driver.admit(prompt_tokens=800).ticket
    for tokens in (1, 2, 3):
        driver.now += 0.1
        driver.progress(ticket, tokens)
    waits = driver.queue(deadline_at=driver.now + 12.0, prompt_tokens=400)
    assert waits.latest_start_at == pytest.approx(driver.now + 3.0)
    ticket = driver.queue(deadline_at=driver.now + 12.0, prompt_tokens=400, generates=False).ticket
    assert driver.gate._books.queue.waiters[ticket].latest_start_at == pytest.approx(driver.now + 12.0)


def test_shell_is_woken_for_a_waiter_that_may_not_wait_until_the_next_look() -> None:
    """Its last instant comes before the look that is planned."""
    driver = Driver(wide())
    driver.read(0.0)
    driver.admit(prompt_tokens=900)
    driver.queue(latest_start_at=driver.now + 0.005)
    assert driver.step.wake_at == driver.now + 0.005


def test_whoever_left_is_not_turned_away_when_its_time_has_come() -> None:
    """An expiry of one that is gone is passed over."""
    driver = Driver(wide())
    driver.read(0.0)
    driver.admit(prompt_tokens=900)
    stays = driver.queue(latest_start_at=driver.now + 1.0)
    leaves = driver.queue(latest_start_at=driver.now + 1.5)
    driver.cancel(leaves.ticket)
    driver.pass_s(2.0)
    assert [refusal.ticket for refusal in driver.step.refusals] == [stays.ticket]


def test_what_the_shell_may_ask_at_any_time() -> None:
    """Bytes held by those who wait, and what is left of a quota."""
    limits = TenantLimits(requests_per_s=1.0, request_burst=3.0)
    options = GateOptions(kv=KvOptions(max_sequences=1), tenants={"metered": limits})
    driver = Driver(options)
    driver.read(0.0)
    driver.admit("metered")
    driver.queue("metered", body_bytes=70)
    assert driver.gate.queued_bytes == 70
    [left] = driver.gate.quota_left("metered", driver.now)
    assert (left.name, left.remaining) == ("requests", 1.0)
    assert driver.gate.quota_left("t", driver.now) == ()
    driver.gate.caller_gone(999, driver.now)
    driver.gate.sending_blocked(999, True, driver.now)
    assert driver.gate.statistics(driver.now).running == 1
