"""What is asked of a request at the door, in order of cost: the cheapest refusal first.

Law of this file: nothing is charged before everything that could refuse has been asked, except the
tenant's quota, which comes last and is given back by whoever refuses after it.
"""

from __future__ import annotations

from tidegate.core.books import Books
from tidegate.core.decisions import Ask, InvalidAsk, Reason, Refuse, Uniform
from tidegate.core.flow import Flow
from tidegate.core.lengths import LengthModel
from tidegate.core.line import Waiter
from tidegate.core.retry_calendar import EARLY_S, Slot, key_of
from tidegate.core.verdict import Verdict

SESSION_HEAD_START_S = 5.0  # a conversation under way counts as if it had come this much earlier
MEDIAN = 0.5
_ANY = Ask(ticket=0, tenant="", priority_class="", prompt_tokens=0)  # any request: may run anywhere
GOLDEN = 0.6180339887498949  # spreads quantiles evenly: the sum of predictions varies least


class Intake:
    """Judges arrivals; knows the books, holds only the sequence of quantiles."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._quantile: float | None = None

    def require_class(self, name: str) -> None:
        """Raises `InvalidAsk` for a class that is not configured."""
        if name not in self._books.queue.by_name:
            known = ", ".join(self._books.queue.by_name)
            raise InvalidAsk(f"priority_class is {name!r}, expected one of {known}.")

    def needs_no_precheck(self, tenant_name: str) -> bool:
        """Nobody waits and the tenant has no quota: what remains is decided just as well with the body."""
        return not self._books.queue.waiters and self._books.tenants.is_without_quota(tenant_name)

    def precheck(self, tenant_name: str, class_name: str, now: float, uniform: Uniform) -> Refuse | None:
        """Before the body is read: signal, quota, seats."""
        self.require_class(class_name)
        books = self._books
        tenant = books.tenants.get(tenant_name, now)
        flow = books.queue.flow(tenant, class_name)
        flow.band.seen_at = now
        reason = self._signal_reason(_ANY, now)
        if reason is None and tenant.quota is not None:
            shortfall = tenant.quota.peek(max(1.0, tenant.usual_cost), now)
            if shortfall is not None:
                return books.refusals.quota(0, shortfall)
        reason = reason or books.room.is_full_for(flow)
        if reason is None:
            return None
        ask = Ask(ticket=0, tenant=tenant_name, priority_class=class_name, prompt_tokens=0)
        return books.refusals.transient(ask, flow, reason, now, uniform)

    def judge(self, ask: Ask, now: float, uniform: Uniform) -> Waiter | Refuse:
        """Refuse, or charge the quota and let it wait."""
        books = self._books
        tenant = books.tenants.get(ask.tenant, now)
        flow = tenant.flows.get(ask.priority_class) or books.queue.flow(tenant, ask.priority_class)
        flow.band.seen_at = now
        permanent, reason = None, None
        if tenant.quota is not None or not books.pool.is_plain(ask):
            permanent = self._permanent(ask, flow)
            if permanent is not None:
                return permanent
            reason = self._signal_reason(ask, now)
        latest_start_at = now + flow.band.max_wait_s
        if ask.latest_start_at is not None or ask.deadline_at is not None:
            latest_start_at = self._latest_start(ask, latest_start_at, now)
        if reason is None and latest_start_at < now:
            reason = Reason.WAIT_TOO_LONG
        if reason is not None:
            return books.refusals.transient(ask, flow, reason, now, uniform)
        quantile = self._next_quantile(uniform)
        has_returned = ask.attempt > 1 or ask.identity is not None  # or may have
        slot = self._slot(ask, flow, now) if has_returned else None
        if slot is not None and now < slot.told_at - EARLY_S and not self._is_free(ask, flow, quantile, now):
            return books.refusals.too_early(ask, slot.told_at - now)
        cost, quota = 0.0, tenant.quota
        if quota is not None:
            cost = self._cost(ask, quantile)
            shortfall = quota.charge(cost, ask.identity, now)
            if shortfall is not None:
                return books.refusals.quota(ask.ticket, shortfall)
            cost = quota.chargeable(cost)
            if not tenant.usual_cost:
                tenant.usual_cost = cost
        return self._seat(ask, flow, quantile, cost, latest_start_at, slot, now)

    def _seat(
        self,
        ask: Ask,
        flow: Flow,
        quantile: float,
        cost: float,
        latest_start_at: float,
        slot: Slot | None,
        now: float,
    ) -> Waiter:
        arrived_at = now
        supersedes: tuple[int, ...] = ()
        earlier = self._books.running.superseded_by(ask, now) if ask.is_keyed else None
        if earlier is not None:
            earlier.is_cancelled = True
            supersedes = (earlier.ask.ticket,)
            arrived_at = earlier.started_at - earlier.waited_s
        if slot is not None:
            self._books.calendar.claim(slot)
            arrived_at = min(arrived_at, slot.arrived_at)
        order = arrived_at
        if ask.session is not None and self._books.tenants.is_under_way(ask.tenant, ask.session, now):
            order = min(arrived_at, now - SESSION_HEAD_START_S)
        kinds = LengthModel.kinds(ask.length_key, ask.max_output_tokens)
        is_returning = slot is not None
        return Waiter(  # by position: by name takes three times as long
            ask,
            flow,
            order,
            arrived_at,
            now,
            latest_start_at,
            kinds,
            quantile,
            cost,
            is_returning,
            supersedes,
        )

    def _permanent(self, ask: Ask, flow: Flow) -> Refuse | None:
        detail = self._books.pool.never_fits(ask)
        if detail is not None:
            return self._books.refusals.permanent(ask, Reason.PROMPT_TOO_LARGE, "model", detail)
        quota = flow.tenant.quota
        if quota is None:
            return None
        tokens = quota.tokens
        if tokens is not None and ask.prompt_tokens_floor > tokens.burst:
            detail = (
                f"The prompt has at least {ask.prompt_tokens_floor} tokens; "
                f"the quota never holds more than {tokens.burst:.0f}."
            )
            return self._books.refusals.permanent(ask, Reason.COST_ABOVE_BURST, "tenant", detail)
        return None

    def _signal_reason(self, ask: Ask, now: float) -> Reason | None:
        pool = self._books.pool
        if pool.is_asleep(ask):
            return Reason.ASLEEP
        return Reason.KV_BLIND if pool.is_shut(ask, now) else None

    def _latest_start(self, ask: Ask, latest_at: float, now: float) -> float:
        """The least of what the class (`latest_at`) and the caller allow.

        A caller that needs the whole answer by an instant may start at once however long it will take,
        but is not queued beyond the instant from which the answer would come too late.
        """
        if ask.latest_start_at is not None:
            latest_at = min(latest_at, ask.latest_start_at)
        if ask.deadline_at is not None:
            latest_at = min(latest_at, max(now, ask.deadline_at - self._whole_answer_s(ask)))
        return latest_at

    def _whole_answer_s(self, ask: Ask) -> float:
        """Seconds the answer is expected to take; 0 while the engine's pace is unknown."""
        instance = self._books.pool.candidates(ask)[0]
        pace_s = instance.budget.inter_token_s.value
        if pace_s is None or not ask.generates:
            return 0.0
        kinds = LengthModel.kinds(ask.length_key, ask.max_output_tokens)
        return pace_s * self._books.pool.predict(ask, kinds, MEDIAN, instance)

    def _slot(self, ask: Ask, flow: Flow, now: float) -> Slot | None:
        return self._books.calendar.find(flow, key_of(ask), is_retry=ask.attempt > 1, now=now)

    def _is_free(self, ask: Ask, flow: Flow, quantile: float, now: float) -> bool:
        """Nothing waits ahead of it and it fits."""
        if self._books.queue.ahead_of(flow) or flow.tenant.is_at_cap:
            return False
        kinds = LengthModel.kinds(ask.length_key, ask.max_output_tokens)
        dispatcher = self._books.dispatcher
        ceiling = dispatcher.ceiling(flow.band, now)
        placed = self._books.pool.place(ask, kinds, quantile, ceiling, now)
        return placed.verdict is Verdict.FITS

    def _cost(self, ask: Ask, quantile: float) -> float:
        """Tokens charged to the quota: the prompt and the predicted answer."""
        kinds = LengthModel.kinds(ask.length_key, ask.max_output_tokens)
        instance = self._books.pool.candidates(ask)[0]
        predicted = self._books.pool.predict(ask, kinds, quantile, instance)
        return ask.prompt_tokens + predicted * ask.sequences

    def _next_quantile(self, uniform: Uniform) -> float:
        if self._quantile is None:
            self._quantile = uniform()
        self._quantile = (self._quantile + GOLDEN) % 1.0
        return self._quantile
