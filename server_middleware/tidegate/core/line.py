"""Requests of one caller that wait, in their own order.

Law of this file: the heap holds entries that may be out of date; each is checked when it surfaces, which
keeps a departure at O(1).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.core.decisions import Ask
from tidegate.core.lengths import Kinds

if TYPE_CHECKING:
    from tidegate.core.flow import Flow

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
class Line:
    """Whoever has the least `order` goes first."""

    waiting: OrderedDict[int, Waiter] = field(default_factory=OrderedDict)  # by seating
    _heap: list[tuple[float, int, Waiter]] = field(default_factory=list)

    def seat(self, waiter: Waiter) -> None:
        """One more request."""
        self.waiting[waiter.ask.ticket] = waiter
        if len(self._heap) > COMPACT_ABOVE + 2 * len(self.waiting):
            self._heap = [(one.order, one.sequence, one) for one in self.waiting.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (waiter.order, waiter.sequence, waiter))

    def head(self) -> Waiter | None:
        """The next request."""
        heap, waiting = self._heap, self.waiting
        while heap:
            waiter = heap[0][2]
            if waiter.ask.ticket in waiting:
                return waiter
            heapq.heappop(heap)
        return None

    def first(self, most: int) -> list[Waiter]:
        """The next requests in order, at most this many."""
        taken: list[tuple[float, int, Waiter]] = []
        while len(taken) < most and self.head() is not None:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [entry[2] for entry in taken]
