"""One server as seen with one credential, and one attempt on its way to it.

Law: data only; whoever changes it holds the board's lock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from .core.budget import RetryBudget
from .core.concurrency import Limit
from .core.lane import Lane, Ticket
from .core.policy import RetryPolicy
from .core.throttle import Throttle
from .timebase import Signal

_MAX_PARTS = 64
Part = tuple[str, str]
"""A class or a model: what kind of thing, and its name."""
_BUDGET = 100.0


@dataclasses.dataclass(frozen=True, slots=True)
class OriginState:
    """One origin as it stands. Two credentials on one server are two of these.

    Attributes:
        origin: scheme, host and port.
        waiting: calls that wait for their turn.
        quiet_s: seconds until the server wants to hear from us again, 0 when it does already.
        retry_budget: unadvised retries left.
    """

    origin: str
    waiting: int
    quiet_s: float
    retry_budget: float


class Origin:
    """A server as seen with one credential: a lane for all of it, and one per class or model that was
    refused.
    """

    def __init__(self, name: str, policy: RetryPolicy) -> None:
        self.name = name
        self.slow_start = policy.slow_start
        self.lane = Lane(policy.slow_start)
        self.throttle: Throttle | None = None
        self.parts: dict[Part, Lane] = {}
        self.budget = RetryBudget(_BUDGET)
        self.reason = ""
        self.adopt(policy)

    def adopt(self, policy: RetryPolicy) -> None:
        """Take on the bounds on all callers that `policy` asks for and none has asked for before."""
        if policy.concurrency is not None and self.lane.limit is None:
            self.lane.limit = Limit(policy.concurrency)
        if policy.throttle_k is not None and self.throttle is None:
            self.throttle = Throttle(policy.throttle_k)

    def lanes(self) -> list[Lane]:
        """All lanes, the narrow ones first."""
        return [*self.parts.values(), self.lane]

    def part(self, key: Part) -> Lane:
        """The lane of a class or model, made on its first refusal; the whole origin's when all are in use."""
        if key not in self.parts and len(self.parts) >= _MAX_PARTS:
            idle = [name for name, lane in self.parts.items() if lane.waiting == 0]
            if not idle:
                return self.lane
            del self.parts[min(idle, key=lambda name: self.parts[name].quiet_until)]
        return self.parts.setdefault(key, Lane(self.slow_start))

    def forget_open_parts(self, now: float) -> None:
        """What was refused long ago costs the calls of today nothing."""
        for name in [name for name, lane in self.parts.items() if lane.is_open(now)]:
            del self.parts[name]


def goes_at_once(origin: Origin) -> bool:
    """Whether nothing at all holds an attempt up: the short way for almost every call.

    It is asked without the lock: who goes while another is being refused has gone an instant before that.
    """
    lane = origin.lane
    return not (lane.recovering or lane.limit is not None or origin.parts or origin.throttle is not None)


class Turn:
    """One attempt on its way through the lanes that concern it.

    Attributes:
        order: arrival of the call; lower goes first.
        request: what its class and model are read from, should some lane ask.
        latest: the instant at which the caller stops waiting.
        held: the lanes passed, with the ticket each gave (none while it was open).
        answering: the places it takes until its answer's body has ended, where those are limited.
        signal: wakes the caller.
        parts: the class and the model it belongs to, once some lane has asked.
        until: the instant at which it can be expected to go.
        home: the event loop it waits on; None on a thread of its own.
        stands_in_after_s: how late the first in line may be until this one, further back and at home
            elsewhere, moves the line up.
        appointed: it has come at a time that the server gave to it alone, and waits for nobody.
    """

    latest = math.inf
    at: tuple[Lane, Ticket] | None = None
    answering: Sequence[tuple[Lane, Ticket]] = ()
    signal: Signal | None = None
    parts: Sequence[Part] | None = None
    until = 0.0
    home: object = None
    stands_in_after_s = 0.5
    appointed = False

    def __init__(self, origin: Origin, order: int, request: Any) -> None:
        self.origin = origin
        self.order = order
        self.request = request
        self.held: list[tuple[Lane, Ticket | None]] = []
