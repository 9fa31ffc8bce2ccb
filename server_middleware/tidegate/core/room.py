"""The bounds of the waiting room, and who gives way when it is full.

Law of this file: whoever arrives is seated first and judged after, so that a request which can start at
once never needs a seat. When the room is too full, the newest request of the heaviest tenant of the
lowest class gives way; seats are kept for callers whose slot falls due, up to half of a class's.
"""

from __future__ import annotations

from itertools import islice

from tidegate.core.band import Band
from tidegate.core.decisions import Reason
from tidegate.core.fair_queue import FairQueue
from tidegate.core.flow import Flow
from tidegate.core.line import Waiter
from tidegate.core.retry_calendar import RetryCalendar
from tidegate.core.tenants import Tenants

LOOK_BACK = 16  # newest seats looked at for one that was not promised


class Room:
    """Judges whether the room holds."""

    def __init__(self, queue: FairQueue, calendar: RetryCalendar, tenants: Tenants) -> None:
        self._queue = queue
        self._calendar = calendar
        self._tenants = tenants

    def victim(self, arrival: Waiter) -> tuple[Waiter, Reason] | None:
        """Who must leave now that `arrival` is seated, and why; `None` while the room holds."""
        flow, band = arrival.flow, arrival.flow.band
        if flow.tenant.queued > self._tenants.max_queued(flow.tenant):
            victim = arrival if flow.turns is None else _newest(flow, arrival)
            return victim, Reason.TENANT_QUEUE_FULL
        if band.queued > band.options.max_queued:
            return self._newest_of_heaviest(band, arrival)
        bounds = self._queue.options
        if len(self._queue) > bounds.max_requests or self._queue.queued_bytes > bounds.max_bytes:
            lowest = next(item for item in reversed(self._queue.bands) if item.queued)
            return self._newest_of_heaviest(lowest, arrival)
        if not arrival.is_returning and self._kept(band) and self._is_full(band, self._kept(band) + 1):
            return arrival, Reason.QUEUE_FULL
        return None

    def is_full_for(self, flow: Flow) -> Reason | None:
        """Whether a newcomer of this flow would surely be turned away; judged before its body is read."""
        if self._calendar.due_in(flow.band.options.name):
            return None  # it may be the one a seat is kept for
        if flow.tenant.queued >= self._tenants.max_queued(flow.tenant):
            may_take_over = flow.turns is not None and flow.turns.is_uneven
            return None if may_take_over else Reason.TENANT_QUEUE_FULL
        if not self._is_full(flow.band, 0):
            return None
        if any(band.queued for band in self._queue.bands[flow.band.rank + 1 :]):
            return None
        heaviest = flow.band.heaviest()
        weight = flow.tenant.limits.weight
        is_lighter = heaviest is not None and heaviest.load > flow.load + 1 / weight
        return None if is_lighter else Reason.QUEUE_FULL

    def _is_full(self, band: Band, kept: int) -> bool:
        bounds = self._queue.options
        return (
            band.queued + kept > band.options.max_queued - (0 if kept else 1)
            or len(self._queue) + kept > bounds.max_requests - (0 if kept else 1)
            or self._queue.queued_bytes >= bounds.max_bytes
        )

    def _kept(self, band: Band) -> int:
        seats = min(band.options.max_queued, self._queue.options.max_requests)
        return min(self._calendar.due_in(band.options.name), seats // 2)

    def _newest_of_heaviest(self, band: Band, arrival: Waiter) -> tuple[Waiter, Reason]:
        heaviest = band.heaviest() or arrival.flow
        is_own = arrival.flow.band is band and not arrival.is_returning
        if is_own and heaviest.load <= arrival.flow.load:
            heaviest = arrival.flow
        victim = _newest(heaviest, arrival)
        return victim, Reason.QUEUE_FULL if victim is arrival else Reason.DISPLACED


def _newest(flow: Flow, arrival: Waiter) -> Waiter:
    """The tenant's newest request without a promise; where it names end users, of the heaviest of them."""
    waiting = flow.waiting if flow.turns is None else flow.turns.heaviest(arrival.ask.ticket).waiting
    newest = list(islice(reversed(waiting.values()), LOOK_BACK))
    return next((waiter for waiter in newest if not waiter.is_returning), newest[0])
