"""Who starts next: promotion of the overdue, and passing a blocked head."""

from __future__ import annotations

from tests.core.driver import FILL, Driver, half, small, wide
from tidegate.core.decisions import Admit
from tidegate.core.dispatch import BETWEEN_PROMOTIONS
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, TenantLimits
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


def _routed() -> Driver:
    """Two engines, and three classes that all may use all of them."""
    classes = tuple(ClassOptions(name=name, starvation_s=5.0) for name in ("vip", "standard", "batch"))
    kv = KvOptions(capacity_tokens=1000, high_watermark=1.0, margin=0.0, margin_min=0.0, block_tokens=1)
    driver = Driver(GateOptions(kv=kv, classes=classes))
    readings = [Reading(kv_usage=0.0, running=0, instance=name) for name in ("e1", "e2")]
    driver.step = driver.gate.observe(readings, driver.now, half)
    return driver


def test_head_of_a_full_engine_holds_up_nobody_of_another() -> None:
    """Where the shell routes, each engine has a queue of its own."""
    driver = _routed()
    driver.admit(prompt_tokens=800, instance="e1")
    head = driver.queue(prompt_tokens=300, instance="e1")
    driver.admit(priority_class="batch", prompt_tokens=500, instance="e2")
    sleeper = driver.queue(priority_class="vip", prompt_tokens=600, instance="e2")
    driver.step = driver.gate.observe([Reading(kv_usage=0.8, asleep=True, instance="e1")], driver.now, half)
    assert [refusal.ticket for refusal in driver.step.refusals] == [head.ticket]
    assert sleeper.ticket in driver.gate._books.queue.waiters, "its engine does not sleep"


def test_head_that_waits_for_a_sequence_is_not_passed() -> None:
    """Only one that waits for room in the cache may be, and only by one that will be out of its way."""
    driver = _routed()
    readings = [Reading(kv_usage=0.1, running=2, max_sequences=3, instance=name) for name in ("e1", "e2")]
    driver.step = driver.gate.observe(readings, driver.now, half)
    running = [driver.admit(prompt_tokens=100, sequences=2, instance=name).ticket for name in ("e1", "e2")]
    head = driver.queue(prompt_tokens=10, sequences=2)
    driver.queue(priority_class="batch", prompt_tokens=10)
    assert driver.release(running[0])[0] == head.ticket


def test_head_is_not_passed_on_an_engine_of_unknown_size() -> None:
    """There is no telling whether the passer would be out of its way."""
    driver = Driver(GateOptions(kv=KvOptions(max_prefill_tokens=500)))
    readings = [
        Reading(kv_usage=0.1, running=0, capacity_tokens=1000, instance="e1"),
        Reading(kv_usage=0.1, running=0, instance="e2"),
    ]
    driver.step = driver.gate.observe(readings, driver.now, half)
    driver.progress(driver.admit(prompt_tokens=700, instance="e1").ticket, 1)
    driver.admit(prompt_tokens=100, instance="e2")
    driver.queue(prompt_tokens=450)  # the one is too full for it, the other has too much to read
    driver.queue(priority_class="batch", prompt_tokens=250)


def test_who_would_starve_an_overdue_head_does_not_pass_another_either() -> None:
    """It fits, and is out of the way of the head before it, but not of the one that has waited too long."""
    driver = Driver(wide())
    driver.read(0.0)
    driver.admit("t", "vip", prompt_tokens=500, max_output_tokens=1)
    overdue = driver.queue("t", "batch", prompt_tokens=600, max_output_tokens=1)
    driver.now += 31.0
    driver.read(0.5)
    books = driver.gate._books
    while books.dispatcher.since_served(books.queue.by_name["batch"]) < 2 * BETWEEN_PROMOTIONS:
        driver.release(driver.admit("t", "vip", prompt_tokens=10, max_output_tokens=1).ticket)
    head = driver.queue("t", "vip", prompt_tokens=700, max_output_tokens=1)
    driver.now += 0.1
    small = driver.queue("t", "vip", prompt_tokens=100, max_output_tokens=1)
    driver.pass_s(0.1)
    assert {overdue.ticket, head.ticket, small.ticket} <= set(books.queue.waiters)
