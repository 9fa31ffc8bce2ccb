"""Who starts next: promotion of the overdue, and passing a blocked head."""

from __future__ import annotations

from tests.core.driver import FILL, Driver, half, small, wide
from tidegate.core.decisions import Admit
from tidegate.core.options import TenantLimits
from tidegate.core.reading import Reading


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


def test_a_third_tenant_may_pass_when_the_first_two_may_not() -> None:
    """Behind a blocked head the next tenants are asked in turn."""
    driver = Driver(wide())
    driver.admit("x", prompt_tokens=500, max_output_tokens=300)
    driver.queue("head", prompt_tokens=650, max_output_tokens=50)
    driver.queue("second", prompt_tokens=600, max_output_tokens=900)
    driver.now += 0.1
    driver.admit("third", prompt_tokens=5, max_output_tokens=10)


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


def test_tenant_at_its_cap_blocks_nobody() -> None:
    """A head held back by its own bound is stepped over, and comes up as soon as it may."""
    options = wide()
    options.tenants["capped"] = TenantLimits(max_concurrency=1)
    driver = Driver(options)
    first = driver.admit("capped")
    second = driver.queue("capped")
    driver.admit("other")
    assert driver.release(first.ticket) == [second.ticket]


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
