"""What one process knows of the servers it talks to, shared by all its calls.

Law: one lock guards every lane; nothing blocks or calls out while it is held. The number of origins
remembered is bounded, and one with callers waiting is never forgotten.
"""

from __future__ import annotations

import collections
import math
import threading
from typing import Any

from .core.decision import Cooldown
from .core.lane import Lane, Ticket, Uniform
from .core.policy import RetryPolicy
from .forks import renew_in_children
from .identity import origin_name, part_keys
from .origins import Origin, OriginState, Part, Turn

MAX_ORIGINS = 1024
_SOONEST_STAND_IN_S = 0.05
"""Who stands in for a caller that does not come asks so soon after it was due, when many do not."""


class Board:
    """The origins of one process, least recently used first.

    Args:
        max_origins: how many to remember.

    Raises:
        ValueError: fewer than one.
    """

    def __init__(self, max_origins: int = MAX_ORIGINS) -> None:
        if max_origins < 1:
            raise ValueError(f"Board.max_origins is {max_origins!r}: give a whole number, at least 1.")
        self._max_origins = max_origins
        self._origins: collections.OrderedDict[object, Origin] = collections.OrderedDict()
        self._last: tuple[object, Origin | None] = (None, None)
        self._waiting: dict[Ticket, Turn] = {}
        self._lock = threading.Lock()
        renew_in_children(self)

    def begin_anew(self) -> None:
        """In a forked child: nobody waits here, and what the parent's callers wait for is none of ours."""
        self._lock = threading.Lock()
        self._origins = collections.OrderedDict()
        self._last = (None, None)

    def origin(self, key: object, request: Any, policy: RetryPolicy) -> Origin:
        """The origin under `key`, made by the policy of its first caller when it is new. What bounds all
        callers holds from the first that asks for it.
        """
        last_key, last = self._last
        asks = policy.concurrency is not None or policy.throttle_k is not None
        if last is not None and last_key == key and not asks:  # most processes talk to one server
            return last
        with self._lock:
            origin = self._origins.get(key)
            if origin is None:
                origin = self._origins[key] = Origin(origin_name(request), policy)
                self._forget()
            else:
                self._origins.move_to_end(key)
                origin.adopt(policy)
            self._last = (key, origin)
            return origin

    def poll(self, turn: Turn, now: float, uniform: Uniform) -> float | None:
        """None: go now. Otherwise the instant at which to ask again, unless the turn's signal is set before.

        `turn.until` then holds the instant at which the attempt can be expected to go.
        """
        if turn.origin.parts and turn.parts is None:
            turn.parts = part_keys(turn.request)  # reads the body: not while others wait for the lock
        with self._lock:
            turn.origin.forget_open_parts(now)
            while (lane := self._next_lane(turn)) is not None:
                if turn.at is None:
                    if lane.is_open(now) or (turn.appointed and lane.limit is None):
                        turn.held.append((lane, None))
                        continue
                    turn.until = lane.estimate(now)
                    turn.at = (lane, Ticket(turn.order))
                    lane.enter(turn.at[1])
                    self._waiting[turn.at[1]] = turn
                others = self._settle(lane, now, uniform, asking=turn)
                ticket = turn.at[1]
                if ticket.granted_at is None:
                    turn.until = max(turn.until, lane.quiet_until)
                    return min(self._wake_at(lane, turn, others), turn.latest)
                turn.held.append(turn.at)
                turn.at = None
            return None

    def quiet_until(self, turn: Turn) -> float:
        """Until when the servers' word keeps this turn from going."""
        with self._lock:
            return turn.at[0].quiet_until if turn.at is not None else 0.0

    def let_in_freely(self, origin: Origin, now: float) -> None:
        """An attempt that had no turn to wait for was not refused."""
        with self._lock:
            origin.budget.refund()
            origin.lane.let_in(None, now)

    def let_in(self, turn: Turn, now: float, uniform: Uniform) -> None:
        """The attempt was not refused."""
        with self._lock:
            origin = turn.origin
            origin.budget.refund()
            if origin.throttle is not None:
                origin.throttle.let_in(now)
            for lane, ticket in turn.held:
                lane.let_in(ticket, now)
                if ticket is not None:
                    if lane.limit is not None:
                        turn.answering = (*turn.answering, (lane, ticket))
                    self._settle(lane, now, uniform)
            turn.held.clear()

    def finish(self, turn: Turn, now: float, uniform: Uniform) -> None:
        """The answer has ended: its place is free. Harmless when repeated."""
        with self._lock:
            for lane, ticket in turn.answering:
                lane.finish(ticket)
                self._settle(lane, now, uniform)
            turn.answering = ()

    def turns_down(self, origin: Origin, now: float, uniform: Uniform) -> bool:
        """Whether the origin has been refusing so much that a call should not be sent."""
        with self._lock:
            return origin.throttle is not None and origin.throttle.turns_down(now, uniform())

    def leave(self, turn: Turn, now: float, uniform: Uniform) -> None:
        """The call stops waiting, or its attempt said nothing about the server."""
        with self._lock:
            if turn.at is not None:
                lane, ticket = turn.at
                turn.at = None
                self._waiting.pop(ticket, None)
                turn.held.append((lane, ticket))
            for lane, passed in turn.held:
                if passed is not None:
                    lane.leave(passed)
                    self._settle(lane, now, uniform)
            turn.held.clear()

    def refused(
        self, turn: Turn, part: Part | None, silence: Cooldown, now: float, uniform: Uniform, reason: str
    ) -> None:
        """The attempt was refused for everything under `part` (None: the whole origin)."""
        with self._lock:
            origin = turn.origin
            origin.reason = reason
            refusing = origin.lane if part is None else origin.part(part)
            tickets = {id(lane): ticket for lane, ticket in turn.held}
            ticket, until = tickets.get(id(refusing)), now + silence.floor_s
            jitter = (silence.jitter_base_s, silence.jitter_cap_s)
            refusing.refused(ticket, now, until, *jitter, uniform(), silence.allowance)
            for lane, passed in turn.held:
                if lane is not refusing and passed is not None:
                    lane.leave(passed)
                    self._settle(lane, now, uniform)
            turn.held.clear()
            self._settle(refusing, now, uniform)

    def hold(self, origin: Origin, now: float, until: float, range_s: float, uniform: Uniform) -> None:
        """The server said that nothing is left until then: nobody goes before."""
        with self._lock:
            origin.lane.hold(now, until, range_s, uniform())

    def spend(self, origin: Origin) -> bool:
        """Take a token of the retry budget; False when it is empty."""
        with self._lock:
            return origin.budget.spend()

    def snapshot(self, now: float) -> list[OriginState]:
        """Every origin as it stands, for a status page."""
        with self._lock:
            return [
                OriginState(
                    origin.name,
                    sum(lane.waiting for lane in origin.lanes()),
                    max(0.0, *(lane.quiet_until - now for lane in origin.lanes())),
                    origin.budget.level,
                )
                for origin in self._origins.values()
            ]

    def _next_lane(self, turn: Turn) -> Lane | None:
        if turn.at is not None:
            return turn.at[0]
        passed = [lane for lane, _ in turn.held]
        parts = turn.origin.parts
        narrow = [parts[key] for key in turn.parts or () if key in parts] if parts else []
        return next((lane for lane in (*narrow, turn.origin.lane) if lane not in passed), None)

    def _wake_at(self, lane: Lane, turn: Turn, others_went: bool) -> float:
        """When `turn` is to ask again. Who is first sets the clock for all on its event loop. Others look a
        little later, since that loop may not run: because one of them blocks it, say.
        """
        head, wake_at = lane.head(), lane.wake_at()
        first = None if head is None else self._waiting[head]
        if first is None or wake_at is None or (first is not turn and first.home is turn.home is not None):
            return math.inf
        if first is turn:
            return wake_at
        factor = 0.5 if others_went else 2.0
        turn.stands_in_after_s = max(_SOONEST_STAND_IN_S, turn.stands_in_after_s * factor)
        return wake_at + turn.stands_in_after_s

    def _settle(self, lane: Lane, now: float, uniform: Uniform, asking: Turn | None = None) -> bool:
        """Grant what can be granted, and let the next in line set its clock; whether others than `asking` may
        go now.
        """
        if lane.waiting == 0:
            return False
        granted = [self._waiting.pop(ticket) for ticket in lane.advance(now, uniform)]
        head = lane.head()
        for turn in granted if head is None else (*granted, self._waiting[head]):
            if turn is not asking and turn.signal is not None:
                turn.signal.set()
        return any(turn is not asking for turn in granted)

    def _forget(self) -> None:
        """Make room by the oldest origin at which nobody waits; that is the newest when all others are waited
        for.
        """
        if len(self._origins) > self._max_origins:
            known = self._origins.items()
            idle = (key for key, origin in known if not any(lane.waiting for lane in origin.lanes()))
            del self._origins[next(idle)]


SHARED = Board()
"""The board of the process; every transport uses it unless it is given another."""
