"""The waiting room: classes in order, tenants in turn inside a class, O(1) departure.

Law of this file: order is decided here and nowhere else. Inside a class the tenant with the least virtual
counter goes first; a counter rises by weighted tokens at dispatch, is settled at the end, and is raised,
never lowered, to the least active one when its tenant returns from idle. Source: the virtual token
counter of "Fairness in Serving Large Language Models", OSDI'24, arXiv 2401.00588.
Heaps hold entries that may be out of date; each is checked when it surfaces, which keeps every operation
at O(log n) and a departure at O(1).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidegate.core.decisions import Ask
from tidegate.core.lengths import Kinds
from tidegate.core.options import ClassOptions, QueueOptions
from tidegate.core.tenants import Tenant
from tidegate.core.turns import Turns

SERVED_LONG_AGO = 3
COMPACT_ABOVE = 64  # heap entries that may be out of date before a heap is rebuilt


@dataclass(slots=True, eq=False)
class Waiter:
    """One request in the room. `order` is its arrival, moved forward for returns and sessions."""

    ask: Ask
    flow: Flow
    order: float
    arrived_at: float
    seated_at: float
    latest_start_at: float
    kinds: Kinds
    quantile: float
    charged_tokens: float
    is_returning: bool = False
    supersedes: tuple[int, ...] = ()  # the running attempt it takes over from
    sequence: int = 0
    blocked_since: float | None = None
    passes: int = 0


@dataclass(slots=True, eq=False)
class Flow:
    """One tenant within one class."""

    tenant: Tenant
    band: Band
    counter: float = 0.0  # weighted tokens served, over weight
    running: int = 0
    booked: int = 0  # calendar slots outstanding
    tail_at: float = float("-inf")  # of this flow's calendar
    is_active: bool = False
    waiting: OrderedDict[int, Waiter] = field(default_factory=OrderedDict)
    entry: int = 0  # the one valid entry in the band's heap
    turns: Turns | None = None  # from the first request on that names an end user
    _heap: list[tuple[float, int, Waiter]] = field(default_factory=list)

    def seat(self, waiter: Waiter) -> None:
        """Take a seat in the order of the tenant's own requests."""
        self.waiting[waiter.ask.ticket] = waiter
        if self.turns is not None:
            self.turns.seat(waiter)
        elif waiter.ask.end_user is not None:
            self._heap.clear()
            self.turns = Turns(list(self.waiting.values()))
        elif len(self._heap) > COMPACT_ABOVE + 2 * len(self.waiting):
            self._heap = [(w.order, w.sequence, w) for w in self.waiting.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (waiter.order, waiter.sequence, waiter))

    def head(self) -> Waiter | None:
        """The tenant's next request."""
        if self.turns is not None:
            return self.turns.head()
        heap, waiting = self._heap, self.waiting
        while heap:
            waiter = heap[0][2]
            if waiter.ask.ticket in waiting:
                return waiter
            heapq.heappop(heap)
        return None

    def first(self, most: int) -> list[Waiter]:
        """The tenant's next requests in order, at most this many."""
        if self.turns is not None:
            return self.turns.first(most)
        taken: list[tuple[float, int, Waiter]] = []
        while len(taken) < most and self.head() is not None:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [entry[2] for entry in taken]

    def leave(self, ticket: int) -> None:
        """Give up a seat."""
        del self.waiting[ticket]
        if self.turns is not None:
            self.turns.leave(ticket)

    def pass_through(self) -> None:
        """What taking a seat and leaving it at once does to the tenant's turn, while nobody waits."""
        if self.counter < self.band.floor:
            self.counter = self.band.floor

    @property
    def load(self) -> float:
        """Seats taken, over weight."""
        return len(self.waiting) / self.tenant.limits.weight


class Band:
    """One priority class: its tenants in turn."""

    def __init__(self, rank: int, options: ClassOptions) -> None:
        self.rank = rank
        self.options = options
        self.max_wait_s = options.max_wait_s
        self.starvation_bound_s = options.starvation_bound_s
        self.queued = 0
        self.running = 0
        self.seen_at = float("-inf")  # last time somebody of this class asked
        self.active_weight = 0.0  # of tenants queued, running or booked
        self.served_at = -SERVED_LONG_AGO  # which dispatch was its last one
        self.floor = 0.0  # least counter served of late; nobody returns below it
        self.order: OrderedDict[int, Waiter] = OrderedDict()  # by seating
        self._heap: list[tuple[float, int, Flow]] = []
        self._heavy: list[tuple[float, int, Flow]] = []
        self._entries = 0

    def head_flow(self) -> Flow | None:
        """The eligible tenant whose turn it is."""
        heap = self._heap
        while heap:
            _, entry, flow = heap[0]
            if entry == flow.entry and flow.waiting and not flow.tenant.is_at_cap:
                return flow
            heapq.heappop(heap)
            if entry == flow.entry:
                flow.entry = 0
        return None

    def head(self) -> Waiter | None:
        """The request whose turn it is; one held back by its tenant's own cap blocks nobody."""
        flow = self.head_flow()
        return None if flow is None else flow.head()

    def followers(self, head: Waiter, most: int) -> Iterator[Waiter]:
        """After the head: the same tenant's next requests and the next tenants' heads."""
        yield from head.flow.first(most)[1:]
        taken: list[tuple[float, int, Flow]] = []
        while len(taken) < most and self.head_flow() is not None:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        for _, _, flow in taken[1:]:
            yield from flow.first(1)

    def oldest(self) -> Waiter | None:
        """Who has been sitting longest."""
        return next(iter(self.order.values())) if self.order else None

    def schedule(self, flow: Flow) -> None:
        """The tenant's counter or eligibility has changed."""
        self._entries += 1
        if not flow.waiting or flow.tenant.is_at_cap:
            flow.entry = 0
            return
        flow.entry = self._entries
        heapq.heappush(self._heap, (flow.counter, flow.entry, flow))
        if len(self._heap) > COMPACT_ABOVE + 2 * self.queued:
            self._heap = [item for item in self._heap if item[1] == item[2].entry]
            heapq.heapify(self._heap)

    def lift(self, flow: Flow) -> None:
        """A tenant returns from idle: it keeps its debt, but brings no credit along."""
        first = self.head_flow()
        least = self.floor if first is None else first.counter
        flow.counter = max(flow.counter, least)

    def charge(self, flow: Flow, tokens: float) -> None:
        """Weighted tokens at dispatch (positive) or at settlement (either sign)."""
        flow.counter += tokens / flow.tenant.limits.weight
        if flow.waiting:
            self.schedule(flow)

    def note_load(self, flow: Flow) -> None:
        """Remember that this tenant may be the heaviest."""
        self._entries += 1
        heapq.heappush(self._heavy, (-flow.load, self._entries, flow))
        if len(self._heavy) > COMPACT_ABOVE + 4 * self.queued:
            flows = {id(item[2]): item[2] for item in self._heavy if item[2].waiting}
            self._heavy = [(-f.load, index, f) for index, f in enumerate(flows.values())]
            heapq.heapify(self._heavy)

    def heaviest(self) -> Flow | None:
        """The tenant with the most seats for its weight."""
        while self._heavy:
            load, entry, flow = self._heavy[0]
            if -load == flow.load and flow.waiting:
                return flow
            heapq.heappop(self._heavy)
            if flow.waiting:
                heapq.heappush(self._heavy, (-flow.load, entry, flow))
        return None

    def note_activity(self, flow: Flow) -> None:
        """Keep the sum of the weights that contend for slots; shares of the calendar are taken over it.

        Whoever only runs has what it wants: counting a VIP that never waits would give most of the slots
        to a class that takes none.
        """
        is_active = bool(flow.waiting or flow.booked)
        if is_active != flow.is_active:
            flow.is_active = is_active
            weight = flow.tenant.limits.weight
            self.active_weight = max(0.0, self.active_weight + (weight if is_active else -weight))


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
