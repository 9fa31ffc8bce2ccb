"""Turning a refusal into an answer: which reason, which bound, and when to come back.

Law of this file: a refusal costs nothing. Whatever was charged for the request is given back, and the
only thing it takes is a slot in the calendar.
"""

from __future__ import annotations

import math
from collections.abc import Sized

from tidegate.core.band import Band
from tidegate.core.decisions import Ask, Reason, Refuse, Scope, Uniform
from tidegate.core.fair_queue import FairQueue
from tidegate.core.flow import Flow
from tidegate.core.line import Waiter
from tidegate.core.quota import Shortfall
from tidegate.core.rates import ServiceRate
from tidegate.core.retry_calendar import RetryCalendar, key_of
from tidegate.core.tenants import Tenants

ASLEEP_RETRY_S = 10.0
BLIND_RETRY_S = 5.0
_MODEL_REASONS = {Reason.ASLEEP: ASLEEP_RETRY_S, Reason.KV_BLIND: BLIND_RETRY_S}


class Refusals:
    """Builds refusals and counts them by reason."""

    def __init__(
        self,
        queue: FairQueue,
        calendar: RetryCalendar,
        rate: ServiceRate,
        tenants: Tenants,
        running: Sized,
    ) -> None:
        self._queue = queue
        self._calendar = calendar
        self._rate = rate
        self._tenants = tenants
        self._running = running
        self.counts: dict[str, int] = {}

    def per_s(self) -> float:
        """Slots given back per second, over all."""
        return self._rate.per_s(len(self._running), 1.0 / self._calendar.options.max_retry_after_s)

    def share(self, flow: Flow) -> float:
        """The part of the rate that comes to this tenant in this class, over those now active."""
        band = flow.band
        active = sum(other.options.weight for other in self._queue.bands if other.active_weight > 0)
        own_class = band.options.weight
        class_share = own_class / (active if band.active_weight > 0 else active + own_class)
        weight = flow.tenant.limits.weight
        return class_share * weight / (band.active_weight if flow.is_active else band.active_weight + weight)

    def transient(
        self,
        ask: Ask,
        flow: Flow,
        reason: Reason,
        now: float,
        uniform: Uniform,
        *,
        waited_s: float = 0.0,
        arrived_at: float | None = None,
    ) -> Refuse:
        """A refusal with a slot of its own."""
        self._count(reason)
        if reason in _MODEL_REASONS:
            wait_s = _MODEL_REASONS[reason] * (1 + 0.5 * uniform())
            return Refuse(ticket=ask.ticket, reason=reason, scope="model", retry_after_s=wait_s)
        mu = self.per_s()
        ahead_s = max(self._queue.ahead_of(flow) / mu, self._own_wait_s(flow))
        rate = min(mu * self.share(flow), flow.tenant.turns_per_s or math.inf)
        came_at = now if arrived_at is None else arrived_at
        wait_s = self._calendar.book(flow, key_of(ask), came_at, ahead_s, rate, now, uniform)
        scope, limit = self._bound(flow, reason)
        return Refuse(
            ticket=ask.ticket,
            reason=reason,
            scope=scope,
            retry_after_s=wait_s,
            limit=limit,
            reset_after_s=wait_s,
            waited_s=waited_s,
        )

    def left(self, waiter: Waiter, reason: Reason, now: float, uniform: Uniform) -> Refuse:
        """A refusal of one that was waiting."""
        return self.transient(
            waiter.ask,
            waiter.flow,
            reason,
            now,
            uniform,
            waited_s=max(0.0, now - waiter.seated_at),
            arrived_at=waiter.arrived_at,
        )

    def too_early(self, ask: Ask, wait_s: float) -> Refuse:
        """The slot it has stands."""
        self._count(Reason.TOO_EARLY)
        return Refuse(
            ticket=ask.ticket,
            reason=Reason.TOO_EARLY,
            scope="request",
            retry_after_s=wait_s,
            reset_after_s=wait_s,
        )

    def quota(self, ticket: int, shortfall: Shortfall) -> Refuse:
        """The tenant's own buckets; the place is booked there, not in the calendar."""
        reason = Reason.TOKEN_RATE_LIMITED if shortfall.is_tokens else Reason.RATE_LIMITED
        self._count(reason)
        return Refuse(
            ticket=ticket,
            reason=reason,
            scope="tenant",
            retry_after_s=shortfall.retry_after_s,
            limit=shortfall.limit,
            remaining=shortfall.remaining,
            reset_after_s=shortfall.reset_after_s,
        )

    def permanent(self, ask: Ask, reason: Reason, scope: Scope, detail: str) -> Refuse:
        """No waiting helps."""
        self._count(reason)
        return Refuse(ticket=ask.ticket, reason=reason, scope=scope, retry_after_s=None, detail=detail)

    def outlook(self, waiter: Waiter) -> tuple[int, float | None]:
        """A waiter's position, and the seconds until its turn; `None` before any answer was timed."""
        flow = waiter.flow
        position = max(1, self._queue.ahead_of(flow))
        if not self._rate.is_timed:
            return position, None
        mu = self.per_s()
        own_turns = len(flow.waiting) / (mu * self.share(flow))
        return position, max(min(position / mu, own_turns), self._own_wait_s(flow))

    def _own_wait_s(self, flow: Flow) -> float:
        """Seconds until a tenant at its own bound on concurrency has served those who wait, and one more may.

        A free server does not help it. On average the first of those that run ends after half a turn.
        """
        turns_per_s = flow.tenant.turns_per_s
        return 0.0 if turns_per_s is None else max(0.0, flow.tenant.queued - 0.5) / turns_per_s

    def seats_of(self, band: Band) -> int:
        """Seats of a class."""
        return min(band.options.max_queued, self._queue.options.max_requests)

    def _bound(self, flow: Flow, reason: Reason) -> tuple[Scope, float | None]:
        """What the refusal is about, and the seats where they are what bit: a wait has no such bound."""
        if reason is Reason.TENANT_QUEUE_FULL:
            return "tenant", float(self._tenants.max_queued(flow.tenant))
        if reason in (Reason.QUEUE_FULL, Reason.DISPLACED):
            return "class", float(self.seats_of(flow.band))
        return "request", None

    def _count(self, reason: Reason) -> None:
        self.counts[reason.value] = self.counts.get(reason.value, 0) + 1
