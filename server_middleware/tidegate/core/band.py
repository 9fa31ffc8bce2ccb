"""One priority class: its tenants in turn.

Law of this file: the tenant with the least virtual counter goes first; a counter rises by weighted tokens at
dispatch, is settled at the end, and is raised, never lowered, to the least active one when its tenant
returns from idle. Source: the virtual token counter of "Fairness in Serving Large Language Models", OSDI'24,
arXiv 2401.00588.
Heaps hold entries that may be out of date; each is checked when it surfaces, which keeps every operation
at O(log n) and a departure at O(1).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from tidegate.core.flow import Flow
from tidegate.core.line import COMPACT_ABOVE, Waiter
from tidegate.core.options import ClassOptions

SERVED_LONG_AGO = 3


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
            self._heavy = [(-one.load, index, one) for index, one in enumerate(flows.values())]
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
