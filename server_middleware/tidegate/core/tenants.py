"""The tenants remembered: limits, quota, what each has queued and running.

Law of this file: memory is bounded, and forgetting never hands an offender a fresh allowance. Only a
tenant that is idle, owes nothing and whose buckets are full may be forgotten; when nobody can be, all
further strangers share one record, and with it one allowance.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.core.options import GateOptions, TenantLimits
from tidegate.core.quota import Quota

if TYPE_CHECKING:
    from tidegate.core.flow import Flow

OVERFLOW = "(overflow)"
COST_RATE = 0.1  # of the usual cost, per request
SERVICE_RATE = 0.1  # of the usual time of an answer, per answer
SCAN = 16  # oldest records looked at for one that may be forgotten
SESSION_MEMORY = 10_000
SESSION_S = 300.0  # a conversation is under way this long after its last answer


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant, over all classes."""

    name: str
    limits: TenantLimits
    quota: Quota | None
    queued: int = 0
    running: int = 0
    usual_cost: float = 0.0  # tokens of an average request; 0 before the first, then its estimate
    has_settled: bool = False
    usual_service_s: float = 0.0  # of its answers, where its concurrency is bounded; 0 before the first
    flows: dict[str, Flow] = field(default_factory=dict)

    def note_cost(self, tokens: float) -> None:
        """What a request has cost; a caller refused before its body is read is told a wait for this much."""
        rate = COST_RATE if self.has_settled else 1.0
        self.usual_cost += rate * (tokens - self.usual_cost)
        self.has_settled = True

    def note_service(self, service_s: float) -> None:
        """How long an answer of it took from its start, in seconds."""
        rate = SERVICE_RATE if self.usual_service_s else 1.0
        self.usual_service_s += rate * (service_s - self.usual_service_s)

    @property
    def turns_per_s(self) -> float | None:
        """How often one of its requests ends, while its own bound on concurrency holds it back.

        `None` while it does not, or before an answer was timed: then it shares the server's rate.
        """
        cap = self.limits.max_concurrency
        if cap is None or self.running < cap or not self.usual_service_s:
            return None
        return cap / self.usual_service_s

    @property
    def is_at_cap(self) -> bool:
        """Runs as many as its own bound allows."""
        return self.limits.max_concurrency is not None and self.running >= self.limits.max_concurrency

    def may_be_forgotten(self, now: float) -> bool:
        """Idle, nothing owed, buckets full, and no lead in service over the others of its class."""
        if self.queued or self.running or any(flow.booked for flow in self.flows.values()):
            return False
        if any(flow.counter > flow.band.floor for flow in self.flows.values()):
            return False
        return self.quota is None or self.quota.is_full(now)


class Tenants:
    """Bounded memory of tenants; the least recently seen is forgotten first."""

    def __init__(self, options: GateOptions) -> None:
        self._options = options
        self._known: OrderedDict[str, Tenant] = OrderedDict()
        self._sessions: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._overflow: Tenant | None = None

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str, now: float) -> Tenant:
        """The record of a tenant; made on first sight."""
        tenant = self._known.get(name)
        if tenant is not None:
            self._known.move_to_end(name)
            return tenant
        limits = self._options.tenants.get(name)
        if limits is None and len(self._known) >= self._options.max_tenants and not self._forget_one(now):
            if self._overflow is None:
                self._overflow = self._record(OVERFLOW, self._options.default_tenant, now)
            return self._overflow
        tenant = self._record(name, limits or self._options.default_tenant, now)
        self._known[name] = tenant
        return tenant

    def renew(self, options: GateOptions, now: float) -> None:
        """Other limits from now on, for those who are known too."""
        self._options = options
        for name, tenant in self._known.items():
            self._limit(tenant, options.tenants.get(name) or options.default_tenant, now)
        if self._overflow is not None:
            self._limit(self._overflow, options.default_tenant, now)

    def is_without_quota(self, name: str) -> bool:
        """Whether this tenant is known and its requests are not counted against any rate."""
        tenant = self._known.get(name)
        return tenant is not None and tenant.quota is None

    def max_queued(self, tenant: Tenant) -> int:
        """Seats one tenant may take: configured, else a quarter of the room, at least 8."""
        return tenant.limits.max_queued or max(8, self._options.queue.max_requests // 4)

    def all(self) -> list[Tenant]:
        """Everyone remembered."""
        return [*self._known.values(), *([self._overflow] if self._overflow else [])]

    def note_session(self, tenant: str, session: str, now: float) -> None:
        """An answer of this conversation has been given."""
        self._sessions[tenant, session] = now
        self._sessions.move_to_end((tenant, session))
        while len(self._sessions) > SESSION_MEMORY:
            self._sessions.popitem(last=False)

    def is_under_way(self, tenant: str, session: str, now: float) -> bool:
        """Whether this conversation has had an answer lately."""
        last = self._sessions.get((tenant, session))
        return last is not None and now - last <= SESSION_S

    def _record(self, name: str, limits: TenantLimits, now: float) -> Tenant:
        return Tenant(name, limits, Quota.of(limits, self._options.calendar.max_booked_per_tenant, now))

    def _limit(self, tenant: Tenant, limits: TenantLimits, now: float) -> None:
        before, tenant.limits = tenant.limits, limits
        if limits.rates != before.rates:
            quota = tenant.quota
            most = self._options.calendar.max_booked_per_tenant
            tenant.quota = Quota.of(limits, most, now) if quota is None else quota.renewed(limits, now)
        for flow in tenant.flows.values():
            if flow.is_active:
                flow.band.active_weight += limits.weight - before.weight
            if flow.waiting:
                flow.band.note_load(flow)
                flow.band.schedule(flow)

    def _forget_one(self, now: float) -> bool:
        for _ in range(min(SCAN, len(self._known))):
            name, tenant = next(iter(self._known.items()))
            if name not in self._options.tenants and tenant.may_be_forgotten(now):
                del self._known[name]
                return True
            self._known.move_to_end(name)
        return False
