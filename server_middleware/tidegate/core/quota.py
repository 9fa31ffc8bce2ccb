"""A tenant's quota: two buckets, and bookings over both that say when a refused caller will be let in.

Law of this file: a booking is a claim on refill that nobody else may touch. Therefore a caller that waits
exactly as told is admitted, and ten callers get ten instants.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.core.bucket import TokenBucket
from tidegate.core.options import TenantLimits

DEFAULT_BURST_S = 10.0  # burst, in seconds of the rate, where none is configured
LAPSE_S = 5.0  # a booking not used this long after it fell due is given up ...
LAPSE_SHARE = 0.25  # ... or this share of the told wait after, if that is longer
FULL = 1 - 1e-6  # of the burst: float error aside, nothing is missing


@dataclass(slots=True)
class Booking:
    """One refused caller's place in the refill. `requests` and `tokens` are the amounts claimed."""

    due_at: float
    lapses_at: float
    requests: float
    tokens: float
    identity: str | None
    is_open: bool = True


class Shortfall(NamedTuple):
    """Why a quota refused: which bucket is the later one, and when to come back."""

    is_tokens: bool
    retry_after_s: float
    limit: float
    remaining: float
    reset_after_s: float


class Left(NamedTuple):
    """What a bucket has left for a newcomer; `reset_s`: until all is back or, with none, until one is."""

    name: str
    limit: float
    remaining: float
    reset_s: float


@dataclass(slots=True)
class Quota:
    """A tenant's two buckets, independent of each other, and the bookings over both."""

    requests: TokenBucket | None
    tokens: TokenBucket | None
    max_booked: int = 10_000
    booked: int = 0
    _by_identity: dict[str, Booking] = field(default_factory=dict)
    _anonymous: deque[Booking] = field(default_factory=deque)
    _lapses: list[tuple[float, int, Booking]] = field(default_factory=list)
    _sequence: int = 0

    @classmethod
    def of(cls, limits: TenantLimits, max_booked: int, now: float) -> Quota | None:
        """The quota these limits describe, `None` where they set no rate."""
        if limits.requests_per_s is None and limits.tokens_per_s is None:
            return None
        requests = _bucket(limits.requests_per_s, limits.request_burst, now)
        tokens = _bucket(limits.tokens_per_s, limits.token_burst, now)
        return cls(requests, tokens, max_booked)

    def renewed(self, limits: TenantLimits, now: float) -> Quota | None:
        """What these limits make of it: as full as it was, owing what it owed, with nothing booked.

        A booked instant was computed with rates that no longer hold.
        """
        new = Quota.of(limits, self.max_booked, now)
        self.refill(now)
        if new is not None:
            for bucket, before in ((new.requests, self.requests), (new.tokens, self.tokens)):
                if bucket is not None and before is not None:
                    bucket.level = bucket.burst * min(1.0, before.level / before.burst)
                    bucket.debt = before.debt
        return new

    def refill(self, now: float) -> None:
        """Let unused bookings lapse and bring both buckets up to `now`."""
        while self._lapses and (self._lapses[0][0] <= now or not self._lapses[0][2].is_open):
            self._close(heapq.heappop(self._lapses)[2])
        for bucket in (self.requests, self.tokens):
            if bucket is not None:
                bucket.refill(now)

    def charge(self, cost_tokens: float, identity: str | None, now: float) -> Shortfall | None:
        """Take one request and `cost_tokens`, or say when they will be there and book that place."""
        self.refill(now)
        booking = self._due_booking(identity, now)
        cost_tokens = self.chargeable(cost_tokens)
        if booking is not None and self._holds(cost_tokens):
            self._take(cost_tokens)
            self._close(booking)
            self.refill(now)  # what the booking held beyond its use counts no more than the burst
            return None
        shortfall = self.shortfall(cost_tokens)
        if shortfall is None:
            self._take(cost_tokens)
            self.refill(now)
            return None
        return self._book(shortfall, cost_tokens, identity, now)

    def peek(self, cost_tokens: float, now: float) -> Shortfall | None:
        """Refuse and book a caller whose identity is not known yet; charges nothing."""
        self.refill(now)
        if any(booking.due_at <= now and booking.is_open for booking in self._earliest_bookings()):
            return None
        cost_tokens = self.chargeable(cost_tokens)
        shortfall = self.shortfall(cost_tokens)
        return None if shortfall is None else self._book(shortfall, cost_tokens, None, now)

    def chargeable(self, cost_tokens: float) -> float:
        """An estimate above the burst is charged as the burst; settlement takes the rest."""
        return cost_tokens if self.tokens is None else min(cost_tokens, self.tokens.burst)

    def shortfall(self, cost_tokens: float) -> Shortfall | None:
        """What a newcomer lacks, without booking."""
        request_wait_s = 0.0 if self.requests is None else self.requests.wait_s(1.0)
        token_wait_s = 0.0 if self.tokens is None else self.tokens.wait_s(cost_tokens)
        wait_s = max(request_wait_s, token_wait_s)
        if wait_s <= 0:
            return None
        is_tokens = token_wait_s > request_wait_s
        bucket = self.tokens if is_tokens else self.requests
        if bucket is None:  # pragma: no cover - a wait above zero comes from a bucket
            return None
        free = bucket.free()
        return Shortfall(
            is_tokens=is_tokens,
            retry_after_s=math.ceil(wait_s * 1000) / 1000,
            limit=bucket.burst,
            remaining=max(0.0, free),
            reset_after_s=max(0.0, (bucket.burst - free) / bucket.rate),
        )

    def left(self, now: float) -> tuple[Left, ...]:
        """What newcomers may still take, bucket by bucket."""
        self.refill(now)
        found = []
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                free = bucket.free()
                missing = (bucket.burst if free >= 1 else min(1.0, bucket.burst)) - free
                found.append(Left(name, bucket.burst, max(0.0, free), max(0.0, missing / bucket.rate)))
        return tuple(found)

    def settle(self, requests: float, tokens: float, now: float) -> None:
        """Correct a charge: negative gives back, positive owes."""
        self.refill(now)
        if self.requests is not None and requests:
            self.requests.settle(requests)
        if self.tokens is not None and tokens:
            self.tokens.settle(tokens)

    def is_full(self, now: float) -> bool:
        """Nothing is owed, booked or spent: forgetting this quota gives nobody an allowance."""
        self.refill(now)
        buckets = [bucket for bucket in (self.requests, self.tokens) if bucket is not None]
        return self.booked == 0 and all(
            bucket.debt <= 0 and bucket.level >= bucket.burst * FULL for bucket in buckets
        )

    def _book(self, shortfall: Shortfall, tokens: float, identity: str | None, now: float) -> Shortfall:
        known = None if identity is None else self._by_identity.get(identity)
        if known is not None:  # came early: the place it has stands
            wait_s = max(0.001, math.ceil((known.due_at - now) * 1000) / 1000)
            return shortfall._replace(retry_after_s=wait_s)
        if self.booked < self.max_booked:
            wait_s = shortfall.retry_after_s
            lapses_at = now + wait_s + max(LAPSE_S, LAPSE_SHARE * wait_s)
            booking = Booking(now + wait_s, lapses_at, 1.0, tokens, identity)
            self._claim(booking, 1)
            self._sequence += 1
            heapq.heappush(self._lapses, (lapses_at, self._sequence, booking))
            if identity is None:
                self._anonymous.append(booking)
            else:
                self._by_identity[identity] = booking
        return shortfall

    def _due_booking(self, identity: str | None, now: float) -> Booking | None:
        own = None if identity is None else self._by_identity.get(identity)
        if own is not None:
            return own if own.due_at <= now else None
        earliest = self._earliest_bookings(anonymous_only=True)
        return next((booking for booking in earliest if booking.due_at <= now), None)

    def _earliest_bookings(self, *, anonymous_only: bool = False) -> list[Booking]:
        while self._anonymous and not self._anonymous[0].is_open:
            self._anonymous.popleft()
        found = [self._anonymous[0]] if self._anonymous else []
        if not anonymous_only and self._by_identity:
            found.append(next(iter(self._by_identity.values())))
        return found

    def _holds(self, cost_tokens: float) -> bool:
        fits_requests = self.requests is None or self.requests.holds(1.0)
        return fits_requests and (self.tokens is None or self.tokens.holds(cost_tokens))

    def _take(self, cost_tokens: float) -> None:
        if self.requests is not None:
            self.requests.level -= 1.0
        if self.tokens is not None:
            self.tokens.level -= cost_tokens

    def _claim(self, booking: Booking, sign: int) -> None:
        self.booked += sign
        if self.requests is not None:
            self.requests.booked = max(0.0, self.requests.booked + sign * booking.requests)
        if self.tokens is not None:
            self.tokens.booked = max(0.0, self.tokens.booked + sign * booking.tokens)

    def _close(self, booking: Booking) -> None:
        if booking.is_open:
            booking.is_open = False
            self._claim(booking, -1)
            if booking.identity is not None:
                self._by_identity.pop(booking.identity, None)


def _bucket(rate: float | None, burst: float | None, now: float) -> TokenBucket | None:
    return None if rate is None else TokenBucket(rate, burst or max(1.0, rate * DEFAULT_BURST_S), now)
