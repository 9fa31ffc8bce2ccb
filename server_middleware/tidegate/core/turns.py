"""Inside one tenant: the end users behind its key, in turn.

Law of this file: a tenant's bounds (weight, quota, concurrency, seats) are those of the whole key; here
its turns are divided, and nothing is added to them. All end users weigh the same. The counter is the one of
`band`, one level down: weighted tokens at dispatch, settled at the end; who returns from idle is
raised, never lowered, to the least active one. Memory is bounded; when nobody idle can be forgotten, all
further strangers share one line.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from tidegate.core.line import COMPACT_ABOVE, Line, Waiter

MOST_LINES = 1024
SCAN = 16  # oldest lines looked at for one that may be forgotten


@dataclass(slots=True, eq=False)
class UserLine(Line):
    """One end user's requests in a class."""

    counter: float = 0.0  # weighted tokens served
    entry: int = 0  # the one valid entry among the turns


class Turns:
    """The lines of one tenant in one class."""

    def __init__(self, waiters: list[Waiter]) -> None:
        self._lines: OrderedDict[str | None, UserLine] = OrderedDict()
        self._overflow = UserLine()
        self._line_of: dict[int, UserLine] = {}  # by ticket, of those who wait
        self._order: list[tuple[float, int, UserLine]] = []
        self._entries = 0
        self._floor = 0.0  # least counter served of late; nobody returns below it
        for waiter in waiters:
            self.seat(waiter)

    def __len__(self) -> int:
        return len(self._lines)

    def seat(self, waiter: Waiter) -> None:
        """Take a place in the line of this end user."""
        line = self._line_of[waiter.ask.ticket] = self._line(waiter.ask.end_user)
        if not line.waiting:
            first = self._first_line()
            line.counter = max(line.counter, self._floor if first is None else first.counter)
        line.seat(waiter)
        if len(line.waiting) == 1:
            self._schedule(line)

    def leave(self, ticket: int) -> None:
        """It no longer waits."""
        del self._line_of.pop(ticket).waiting[ticket]

    def head(self) -> Waiter | None:
        """The next request of the end user whose turn it is."""
        line = self._first_line()
        return None if line is None else line.head()

    def first(self, most: int) -> list[Waiter]:
        """The heads of the next lines, at most this many."""
        taken: list[tuple[float, int, UserLine]] = []
        while len(taken) < most and self._first_line() is not None:
            taken.append(heapq.heappop(self._order))
        for item in taken:
            heapq.heappush(self._order, item)
        return [head for _, _, line in taken if (head := line.head()) is not None]

    def started(self, end_user: str | None, tokens: float) -> None:
        """Weighted tokens at dispatch."""
        line = self._line(end_user)
        self._floor = max(self._floor, line.counter)
        self._charge(line, tokens)

    def settled(self, end_user: str | None, tokens: float) -> None:
        """What was used beyond that (or less); the forgotten owe nothing."""
        line = self._lines.get(end_user)
        if line is not None:
            self._charge(line, tokens)

    def heaviest(self, arrival: int) -> UserLine:
        """The end user with the most requests waiting; of equals the one of this ticket."""
        most = max((*self._lines.values(), self._overflow), key=lambda line: len(line.waiting))
        own = self._line_of.get(arrival)
        return own if own is not None and len(own.waiting) == len(most.waiting) else most

    @property
    def is_uneven(self) -> bool:
        """Whether some end user has more than one seat, so that a lighter one could take it over."""
        return any(len(line.waiting) > 1 for line in (*self._lines.values(), self._overflow))

    def _charge(self, line: UserLine, tokens: float) -> None:
        line.counter += tokens
        if line.waiting:
            self._schedule(line)

    def _first_line(self) -> UserLine | None:
        while self._order:
            _, entry, line = self._order[0]
            if entry == line.entry and line.waiting:
                return line
            heapq.heappop(self._order)
        return None

    def _schedule(self, line: UserLine) -> None:
        self._entries += 1
        line.entry = self._entries
        heapq.heappush(self._order, (line.counter, line.entry, line))
        if len(self._order) > COMPACT_ABOVE + 2 * len(self._lines):
            self._order = [item for item in self._order if item[1] == item[2].entry and item[2].waiting]
            heapq.heapify(self._order)

    def _line(self, end_user: str | None) -> UserLine:
        line = self._lines.get(end_user)
        if line is not None:
            self._lines.move_to_end(end_user)
            return line
        if len(self._lines) >= MOST_LINES and not self._forget_one():
            return self._overflow
        line = self._lines[end_user] = UserLine()
        return line

    def _forget_one(self) -> bool:
        """Only who waits for nothing and leads nobody in service."""
        for _ in range(min(SCAN, len(self._lines))):
            end_user, line = next(iter(self._lines.items()))
            if not line.waiting and line.counter <= self._floor:
                del self._lines[end_user]
                return True
            self._lines.move_to_end(end_user)
        return False
