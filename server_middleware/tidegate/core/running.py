"""The requests that run: from the charge at the decision to the settlement at the end.

Law of this file: every lease ends exactly once, when the app is done; a caller that left changes nothing by
itself, since the engine still works.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.core import ranks
from tidegate.core.decisions import COMPLETED, Ask, Ending, Settlement
from tidegate.core.flow import Flow
from tidegate.core.instance import Instance
from tidegate.core.ledger import Lease
from tidegate.core.lengths import LengthModel
from tidegate.core.line import Waiter
from tidegate.core.pool import Placement, Pool
from tidegate.core.progress import Progress
from tidegate.core.prompts import PromptSizes
from tidegate.core.quota import Quota
from tidegate.core.rates import ServiceRate
from tidegate.core.reading import Reading
from tidegate.core.retry_calendar import Key, key_of
from tidegate.core.tenants import Tenant, Tenants
from tidegate.core.usage import taught_length, used_tokens, virtual_tokens
from tidegate.core.wide import fitting

ESTIMATE_EVERY_S = 0.1


class Running:
    """Leases by ticket, over all instances."""

    def __init__(
        self,
        pool: Pool,
        tenants: Tenants,
        lengths: LengthModel,
        prompts: PromptSizes,
        rate: ServiceRate,
    ) -> None:
        self._pool = pool
        self._tenants = tenants
        self._lengths = lengths
        self._prompts = prompts
        self._rate = rate
        self._progress = Progress(lengths)
        self._places: dict[int, tuple[Lease, Instance, Flow]] = {}
        self._keyed: dict[Key, list[int]] = {}
        self.estimated_at = float("-inf")
        self.admitted = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._places

    def start(self, waiter: Waiter, placement: Placement, waited_s: float, now: float) -> Lease:
        """Charge a lease to the ledger and to the tenant's turn."""
        ask, flow, kinds, quantile = waiter.ask, waiter.flow, waiter.kinds, waiter.quantile
        instance, predicted = placement.instance, placement.predicted
        if placement.quantile != quantile:  # it was judged by a longer answer than is expected of it
            predicted = self._pool.predict(ask, kinds, quantile, instance)
        ticket, sequences, asked_tokens = ask.ticket, ask.sequences, ask.prompt_tokens
        virtual = virtual_tokens(asked_tokens, predicted * sequences)
        at_once = placement.demand.sequences
        pad = at_once * instance.block_tokens / 2
        lag_tokens = instance.lag_tokens(placement.prompt)
        lease = Lease(  # by position: by name takes four times as long
            ask,
            instance.name,
            kinds,
            quantile,
            now,
            waited_s,
            predicted,
            placement.prompt,
            placement.share,
            lag_tokens,
            at_once,
            pad,
            waiter.charged_tokens,
            virtual,
        )
        if sequences > 1:
            lease.spread = placement.spread
        instance.start(lease, now)
        if ask.generates:
            lease.books = self._lengths.begin(kinds, ticket, lease)
        self._places[ticket] = (lease, instance, flow)
        if ask.is_keyed and (key := key_of(ask)) is not None:
            self._keyed.setdefault(key, []).append(ticket)
        band = flow.band
        flow.running += 1
        band.running += 1
        flow.tenant.running += 1
        if band.floor < flow.counter:
            band.floor = flow.counter
        band.charge(flow, virtual)
        if flow.turns is not None:
            flow.turns.started(ask.end_user, virtual)
        self.admitted += 1
        return lease

    def end(self, ticket: int, settlement: Settlement, now: float) -> bool:
        """Close a lease; `False` if there is none of this ticket (any more)."""
        place = self._places.pop(ticket, None)
        if place is None:
            return False
        lease, instance, flow = place
        ask, band, tenant = lease.ask, flow.band, flow.tenant
        ending = settlement.ending
        has_completed = ending is COMPLETED
        instance.end(ticket, now, has_completed=has_completed)
        if ask.is_keyed and (key := key_of(ask)) is not None:
            self._forget_attempt(key, ticket)
        flow.running -= 1
        band.running -= 1
        tenant.running -= 1
        if tenant.queued > len(flow.waiting):  # it may have been at its own bound, in other classes too
            for other in tenant.flows.values():
                other.band.schedule(other)
        prompt, output = used_tokens(lease, settlement)
        difference = virtual_tokens(prompt, output) - lease.charged_virtual
        band.charge(flow, difference)
        if flow.turns is not None:
            flow.turns.settled(ask.end_user, difference)
        if tenant.quota is not None:
            self._settle_quota(lease, tenant, tenant.quota, settlement, prompt + output, now)
        if has_completed:
            if tenant.limits.max_concurrency is not None:
                tenant.note_service(now - lease.started_at)
            self._learn(lease, instance, settlement, now)
        elif ending is Ending.FAILED:
            instance.error(now)
        if lease.books is not None:
            length = taught_length(lease, settlement, output)
            declared = ask.max_output_tokens
            is_cut = settlement.finished_by_length or (
                declared is not None and output >= declared * lease.ask.sequences
            )
            self._lengths.end(lease.books, ticket, length, is_cut)
        return True

    def progress(self, ticket: int, output_tokens: float, now: float) -> None:
        """Output of all sequences seen so far; the first call marks the first token."""
        place = self._places.get(ticket)
        if place is not None:
            self._progress.report(place[0], place[1], output_tokens, now)

    def caller_gone(self, ticket: int) -> None:
        """Its socket has gone, the app still works."""
        place = self._places.get(ticket)
        if place is not None:
            place[0].is_caller_gone = True

    def sending_blocked(self, ticket: int, *, blocked: bool, now: float) -> None:
        """Our own `send` is blocked on a slow reader, or no longer is."""
        place = self._places.get(ticket)
        if place is not None:
            place[0].blocked_since = now if blocked else None

    def superseded_by(self, ask: Ask, now: float) -> Lease | None:
        """The earlier attempt of this very request, where nobody waits for its answer any more."""
        key = None if ask.digest is None else key_of(ask)
        for ticket in () if key is None else self._keyed.get(key, ()):
            lease = self._places[ticket][0]
            deadline = lease.ask.deadline_at
            has_left = lease.is_caller_gone or (deadline is not None and deadline <= now)
            if has_left and lease.ask.digest == ask.digest and not lease.is_cancelled:
                return lease
        return None

    def estimate(self, now: float) -> None:
        """Carry forward what no stream reports: answers in one piece, and streams nobody drains.

        Wanted every `ESTIMATE_EVERY_S`.
        """
        self.estimated_at = now
        for lease, instance, _ in self._places.values():
            self._progress.carry_forward(lease, instance, now)

    def _forget_attempt(self, key: Key, ticket: int) -> None:
        tickets = self._keyed[key]
        tickets.remove(ticket)
        if not tickets:
            del self._keyed[key]

    def _settle_quota(
        self, lease: Lease, tenant: Tenant, quota: Quota, settlement: Settlement, used: float, now: float
    ) -> None:
        if not lease.charged_tokens:  # it began before there was a quota: nothing is owed
            return
        has_done_nothing = settlement.ending is Ending.FAILED and used <= lease.ask.prompt_tokens
        if has_done_nothing and settlement.prompt_tokens is None:
            used = 0.0
        quota.settle(0.0, used - lease.charged_tokens, now)
        tenant.note_cost(used)

    def _learn(self, lease: Lease, instance: Instance, settlement: Settlement, now: float) -> None:
        ask = lease.ask
        service_s = now - lease.started_at
        self._rate.completed(service_s)
        instance.service_s.take(service_s)
        if settlement.prompt_tokens is not None:
            read, tenant = settlement.prompt_tokens, ask.tenant
            grown = self._prompts.learn(tenant, ask.model, ask.ascii_bytes, ask.other_bytes, read)
            for other in self._pool.by_name.values():  # shares keep the tokens they stand for
                other.calibration.restate(tenant, grown)
        if ask.session is not None:
            self._tenants.note_session(ask.tenant, ask.session, now)

    def follow(self, readings: Sequence[Reading], now: float) -> None:
        """Charge requests to the data-parallel ranks where these readings show them."""
        for lease, instance in ranks.follow(readings, self._pool.by_name, now):
            ticket = lease.ask.ticket
            self._places[ticket] = (lease, instance, self._places[ticket][2])

    def restate(self, readings: Sequence[Reading], now: float) -> None:
        """State every prompt by what is known now, before a reading is compared with their sum."""
        for reading in readings:
            instance = self._pool.named(reading.instance)
            if ranks.MARK not in reading.instance:  # it is certain who runs where
                instance.learn_prompts(reading, self._prompts, now)
        for lease, instance, _ in self._places.values():
            prompt = fitting(lease.ask, self._prompts.of(lease.ask), instance.context_limit)
            if prompt != lease.prompt:
                instance.ledger.restate(lease, prompt)
