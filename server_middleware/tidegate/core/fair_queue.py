"""The waiting room's order: classes one above the other, tenants in turn inside a class (`band`).

Law of this file: whoever takes a seat or leaves it, by whichever door, does so here, so that every sum over
the waiting is right.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tidegate.core.band import Band
from tidegate.core.flow import Flow
from tidegate.core.line import COMPACT_ABOVE, Waiter
from tidegate.core.options import ClassOptions, QueueOptions
from tidegate.core.tenants import Tenant


class FairQueue:
    """All classes, highest first, and the bounds of the room."""

    def __init__(self, classes: tuple[ClassOptions, ...], options: QueueOptions) -> None:
        self.options = options
        self.bands = [Band(rank, option) for rank, option in enumerate(classes)]
        self.by_name = {band.options.name: band for band in self.bands}
        self.waiters: dict[int, Waiter] = {}
        self.queued_bytes = 0
        self._expiries: list[tuple[float, int, int]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.waiters)

    def flow(self, tenant: Tenant, class_name: str) -> Flow:
        """The tenant's place in a class."""
        flow = tenant.flows.get(class_name)
        if flow is None:
            flow = tenant.flows[class_name] = Flow(tenant, self.by_name[class_name])
        return flow

    def push(self, waiter: Waiter) -> None:
        """Take a seat."""
        flow, band = waiter.flow, waiter.flow.band
        if not flow.waiting:
            band.lift(flow)
        self._sequence += 1
        waiter.sequence = self._sequence
        flow.seat(waiter)
        band.order[waiter.ask.ticket] = waiter
        self.waiters[waiter.ask.ticket] = waiter
        band.queued += 1
        flow.tenant.queued += 1
        self.queued_bytes += waiter.ask.body_bytes
        heapq.heappush(self._expiries, (waiter.latest_start_at, self._sequence, waiter.ask.ticket))
        if len(self._expiries) > COMPACT_ABOVE + 2 * len(self.waiters):
            self._expiries = [item for item in self._expiries if item[2] in self.waiters]
            heapq.heapify(self._expiries)
        if len(flow.waiting) == 1:
            band.schedule(flow)
        band.note_load(flow)
        band.note_activity(flow)

    def remove(self, ticket: int) -> Waiter | None:
        """Leave the room; O(1) apart from bookkeeping of the tenant's turn."""
        waiter = self.waiters.pop(ticket, None)
        if waiter is None:
            return None
        flow, band = waiter.flow, waiter.flow.band
        flow.leave(ticket)
        del band.order[ticket]
        band.queued -= 1
        flow.tenant.queued -= 1
        self.queued_bytes -= waiter.ask.body_bytes
        band.note_activity(flow)
        return waiter

    def expired(self, now: float, *, at_once: bool = False) -> Iterator[Waiter]:
        """Those who may no longer be started, or not after this instant; the caller removes each."""
        while self._expiries and (self._expiries[0][0] < now or (at_once and self._expiries[0][0] <= now)):
            waiter = self.waiters.get(heapq.heappop(self._expiries)[2])
            if waiter is not None:
                yield waiter

    def next_expiry(self) -> float | None:
        """The first instant after which somebody may no longer be started."""
        while self._expiries and self._expiries[0][2] not in self.waiters:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    def ahead_of(self, flow: Flow) -> int:
        """How many would go before a newcomer of this flow: an upper bound, O(classes)."""
        higher = sum(band.queued for band in self.bands[: flow.band.rank])
        return higher + flow.band.queued
