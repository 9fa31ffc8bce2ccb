"""Frozen statistics of a gate.

Law of this file: it reads and changes nothing.
"""

from __future__ import annotations

from tidegate.core.band import Band
from tidegate.core.books import Books
from tidegate.core.dispatch import Dispatcher
from tidegate.core.instance import Instance
from tidegate.core.statistics import ClassStatistics, InstanceStatistics, Statistics, TenantStatistics
from tidegate.core.tenants import Tenants
from tidegate.core.verdict import Verdict

MOST_TENANTS = 1000  # listed; the busiest first


def statistics(books: Books, blocked_by: Verdict | None, now: float) -> Statistics:
    """The whole gate; `blocked_by` is what held the head of the queue back at the last look."""
    return Statistics(
        is_open=blocked_by not in (Verdict.LEVEL, Verdict.BLIND),
        instances=tuple(instance_statistics(item, now) for item in books.pool.known()),
        classes=tuple(class_statistics(band, books.dispatcher, now) for band in books.queue.bands),
        tenants=tenant_statistics(books.tenants),
        queued=len(books.queue),
        queued_bytes=books.queue.queued_bytes,
        running=len(books.running),
        completions_per_s=books.refusals.per_s(),
        booked_slots=books.calendar.outstanding,
        admitted=books.running.admitted,
        refused=dict(books.refusals.counts),
    )


def instance_statistics(instance: Instance, now: float) -> InstanceStatistics:
    """One engine instance."""
    reading = instance.signal.reading
    return InstanceStatistics(
        name=instance.name,
        state=instance.state(now).value,
        level=None if reading is None else reading.kv_usage,
        age_s=instance.signal.age_s(now),
        capacity_tokens=instance.capacity,
        held_tokens=instance.ledger.held_tokens(),
        projected_peak_tokens=instance.ledger.peak_tokens(),
        high_watermark=instance.high_watermark,
        margin=instance.margin(now),
        kp=instance.calibration.kp,
        leases=len(instance.ledger.leases),
        waiting_in_engine=None if reading is None else reading.waiting,
        running_in_engine=None if reading is None else reading.running,
        preemptions=0.0 if reading is None else reading.preemptions or 0.0,
        stated_capacity_tokens=None if reading is None else reading.capacity_tokens,
        learnt_capacity_tokens=instance.calibration.stated.learnt or instance.calibration.learnt_capacity,
        capacity_disputed=instance.calibration.is_capacity_disputed,
    )


def class_statistics(band: Band, dispatcher: Dispatcher, now: float) -> ClassStatistics:
    """One priority class."""
    oldest = band.oldest()
    return ClassStatistics(
        name=band.options.name,
        queued=band.queued,
        running=band.running,
        oldest_wait_s=0.0 if oldest is None else max(0.0, now - oldest.seated_at),
        kv_ceiling=dispatcher.ceiling(band, now).share,
    )


def tenant_statistics(tenants: Tenants) -> tuple[TenantStatistics, ...]:
    """Tenants with work queued or running, one entry per class they use."""
    busy = [
        (flow, name)
        for tenant in tenants.all()
        if tenant.queued or tenant.running
        for name, flow in tenant.flows.items()
        if flow.waiting or flow.running
    ]
    busy.sort(key=lambda item: (-len(item[0].waiting) - item[0].running, item[0].tenant.name))
    return tuple(
        TenantStatistics(
            name=flow.tenant.name,
            priority_class=name,
            queued=len(flow.waiting),
            running=flow.running,
            virtual_tokens=flow.counter,
        )
        for flow, name in busy[:MOST_TENANTS]
    )
