"""How the calls of one process approach one server together, after it has refused some of them.

Law: pure, and not safe for concurrent use. A lane is what these calls know of one partition of an origin: a
credential, or one class or model of it. Every operation changes the state; `advance` says who may go now,
`wake_at` when to ask again.

While nothing was refused lately a lane is *open* and holds nobody. A refusal makes it *quiet* until the time
the server named; a later refusal that names an earlier time never shortens that. Then it *recovers*: callers
leave in order of arrival,

- the first at `quiet_until` plus the least of n uniform draws of the jitter range, n being the callers that
  wait. That is when the first of n independent callers would come, so that many processes still spread out;
- spaced by a jittered gap at the pace which the server stated or showed (`pace`);
- with at most `window` attempts of unknown outcome under way: few at first, one more with each that is let
  in (slow start: V. Jacobson, "Congestion Avoidance and Control", 1988), half as many after each quiet time
  in a row.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from .concurrency import Limit
from .jitter import growing_s
from .limits import Allowance
from .pace import Pace

Uniform = Callable[[], float]

_UNKNOWN_FOR_S = 1.0
"""An attempt that is not refused within this time is no longer a risk: refusals come fast, answers take
minutes.
"""
_OPENS_AFTER_S = 10.0
_MOST_LATE = 0.5
"""Share of a gap that a late timer may take off the next one: a busy event loop neither slows the line down
nor sends it in bursts.
"""


class Ticket:
    """One call's place in a lane; `order` is the arrival of the call, the same for all its attempts."""

    __slots__ = ("finished", "granted_at", "order")

    def __init__(self, order: int) -> None:
        self.order = order
        self.granted_at: float | None = None
        self.finished = False


class Lane:
    """One partition of an origin.

    Args:
        slow_start: the window after a first refusal.
        limit: a learnt bound on calls under way; with one every attempt needs a ticket, refused lately or
            not.
    """

    def __init__(self, slow_start: int, limit: Limit | None = None) -> None:
        self.limit = limit
        self.quiet_until = 0.0
        self.refused_in_row = 0
        self._slow_start = slow_start
        self._window = slow_start
        self.recovering = False
        self._released = True
        self._range_s = 0.0
        self._draw = 0.0
        self._next_release = 0.0
        self._pace = Pace()
        self._waiting: list[tuple[int, Ticket]] = []
        self._left: set[Ticket] = set()
        self._unknown: dict[Ticket, float] = {}

    @property
    def waiting(self) -> int:
        """How many callers wait here."""
        return len(self._waiting) - len(self._left)

    def is_open(self, now: float) -> bool:
        """Whether attempts may go without a ticket."""
        self._end_recovery(now)
        return not self.recovering and self.limit is None

    def _end_recovery(self, now: float) -> None:
        if self.recovering and self.waiting == 0 and now >= self.quiet_until + _OPENS_AFTER_S:
            self.recovering = False
            self._pace.forget()
            self.refused_in_row, self._window = 0, self._slow_start
            self._unknown.clear()

    def let_in(self, ticket: Ticket | None, now: float) -> None:
        """An attempt was not refused."""
        self._pace.let_in(now, free=not self.recovering)
        self.refused_in_row = 0
        if ticket is not None:
            self._unknown.pop(ticket, None)
            self._window += 1
        if self.limit is not None:
            self.limit.let_in()

    def refused(
        self,
        ticket: Ticket | None,
        now: float,
        until: float,
        base_s: float,
        cap_s: float,
        uniform: float,
        stated: Allowance | None = None,
    ) -> None:
        """An attempt was refused: nobody comes back before `until`, nor all in one instant after it.

        `base_s` and `cap_s` bound the range of the jitter, which doubles with each refusal in a row;
        `uniform` draws from it. `stated` is what the server says it allows.
        """
        if ticket is not None:
            self.leave(ticket)
        if now >= self.quiet_until and self._released:
            self.refused_in_row += 1
            self._window = max(1, self._slow_start >> min(self.refused_in_row - 1, 30))
            if self.limit is not None:
                self.limit.refused()
        self.hold(now, until, growing_s(base_s, cap_s, max(1, self.refused_in_row)), uniform, stated)

    def hold(
        self, now: float, until: float, range_s: float, uniform: float, stated: Allowance | None = None
    ) -> None:
        """Nobody leaves before `until`, plus a share of `range_s` that `uniform` draws."""
        if self._released:
            self._released, self._draw = False, uniform
            self._pace.quiet(now, until)
        if stated is not None:
            self._pace.state(stated)
        self.recovering = True
        self._range_s = range_s
        self.quiet_until = max(self.quiet_until, until)

    def enter(self, ticket: Ticket) -> None:
        """Wait for a turn."""
        heapq.heappush(self._waiting, (ticket.order, ticket))

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting, or end an attempt that says nothing about the server."""
        if ticket.granted_at is None:
            self._left.add(ticket)
        else:
            self._unknown.pop(ticket, None)
            self.finish(ticket)

    def finish(self, ticket: Ticket) -> None:
        """The answer has ended, or the attempt came to nothing. Harmless when repeated."""
        if self.limit is not None and not ticket.finished:
            ticket.finished = True
            self.limit.under_way -= 1

    def head(self) -> Ticket | None:
        """Who leaves next."""
        while self._waiting and self._waiting[0][1] in self._left:
            self._left.discard(heapq.heappop(self._waiting)[1])
        return self._waiting[0][1] if self._waiting else None

    def advance(self, now: float, uniform: Uniform) -> list[Ticket]:
        """Those who may go now."""
        self._end_recovery(now)
        self._forget_unknown(now)
        granted: list[Ticket] = []
        while (
            (head := self.head()) and self._has_room() and (not self.recovering or now >= self._release_at())
        ):
            heapq.heappop(self._waiting)
            head.granted_at = now
            granted.append(head)
            if self.limit is not None:
                self.limit.under_way += 1
            head.finished = self.limit is None  # it takes no place that it could give back to a later limit
            if self.recovering:
                self._release(head, now, uniform())
        return granted

    def wake_at(self) -> float | None:
        """The instant at which `advance` may have news: None while nobody waits, infinity when only others
        can tell.
        """
        if self.head() is None:
            return None
        release_at = self._release_at() if self.recovering else 0.0
        if self.recovering and len(self._unknown) >= self._window:
            release_at = max(release_at, next(iter(self._unknown.values())) + _UNKNOWN_FOR_S)
        return math.inf if self.limit is not None and not self.limit.has_room() else release_at

    def estimate(self, now: float) -> float:
        """The instant at which a caller that enters now can expect to leave."""
        if not self.recovering:
            return now
        return max(now, self._release_at()) + self.waiting / self._pace.at(now, self.waiting)

    def _has_room(self) -> bool:
        room = self.limit is None or self.limit.has_room()
        return room and (not self.recovering or len(self._unknown) < self._window)

    def _release(self, ticket: Ticket, now: float, uniform: float) -> None:
        due = self._release_at()
        self._unknown[ticket] = now
        if not self._released:
            self._released = True
            self._pace.begin_cycle(now)
        self._pace.released()
        gap_s = self._pace.gap_s(now, self.waiting, uniform)
        self._next_release = max(due, now - _MOST_LATE * gap_s) + gap_s

    def _release_at(self) -> float:
        if self._released:
            return max(self._next_release, self.quiet_until)
        least_of_n = 1.0 - math.pow(1.0 - self._draw, 1.0 / max(1, self.waiting))
        return self.quiet_until + self._range_s * least_of_n

    def _forget_unknown(self, now: float) -> None:
        known = [ticket for ticket, since in self._unknown.items() if since + _UNKNOWN_FOR_S <= now]
        for ticket in known:
            del self._unknown[ticket]
        self._window += len(known)
