"""The bounds of the waiting room: who gives way, and what is said before the body is read."""

from __future__ import annotations

from tests.core.driver import FILL, Driver, half, small, wide
from tidegate.core.decisions import Queued, Reason
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, QueueOptions, TenantLimits


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


def test_full_room_refuses_early_where_nobody_could_give_way() -> None:
    """All seats are a higher class's: a lower one hears it before its body is read."""
    driver = Driver(
        GateOptions(
            kv=KvOptions(max_sequences=1),
            queue=QueueOptions(max_requests=2),
            classes=(ClassOptions(name="vip"), ClassOptions(name="batch")),
            default_tenant=TenantLimits(priority_class="batch"),
        )
    )
    driver.read(0.0)
    driver.admit("a", "vip")
    waiting = [driver.queue(tenant, "vip").ticket for tenant in "bc"]
    refused = driver.gate.precheck("z", "batch", driver.now, half)
    assert refused is not None
    assert refused.reason is Reason.QUEUE_FULL
    for ticket in waiting:
        driver.cancel(ticket)
    assert driver.gate.precheck("z", "batch", driver.now, half) is None
    driver.queue("x", "vip")
    driver.queue("y", "vip")
    refused = driver.gate.precheck("z", "vip", driver.now, half)
    assert refused is not None, "those who left are no longer the heaviest"
