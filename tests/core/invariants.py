"""The invariants of the gate, checked from outside with formulas of their own.

1. The charge is the sum of the leases, and no grant took the projected peak over its class's ceiling
   (promoted: the top one; a lone request excepted).
2. No grant after its deadline.
3. While the gate is open, the head of the queue does not fit.
4. Every lease ends exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from tidegate.core.books import Books
from tidegate.core.decisions import Admit, Queued, Refuse, Step
from tidegate.core.dispatch import BETWEEN_PROMOTIONS
from tidegate.core.gate import Gate
from tidegate.core.instance import Instance
from tidegate.core.ledger import Lease
from tidegate.core.lengths import LengthModel
from tidegate.core.line import Waiter
from tidegate.core.pool import Placement
from tidegate.core.signal import State
from tidegate.core.verdict import Verdict

SLACK = 1e-6


def brute_force_peak(leases: Iterable[Lease]) -> float:
    """Walk through every completion and add up who is still there: O(n^2), no sorting, no running sums."""
    present = [lease for lease in leases if not lease.is_drained]
    peak = 0.0
    for ending in present:
        occupancy = sum(
            lease.held + lease.sequences * ending.left for lease in present if lease.left >= ending.left
        )
        peak = max(peak, occupancy)
    return peak


class Watch:
    """Follows a gate: each grant as it is made, and the fate of every ticket."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.waiting: set[int] = set()
        self.running: set[int] = set()
        self.ended: set[int] = set()
        running = gate._books.running
        self._start = running.start
        running.start = self._checked_start  # type: ignore[method-assign]

    def _checked_start(self, waiter: Waiter, placement: Placement, waited_s: float, now: float) -> Lease:
        instance = placement.instance
        was_alone = not instance.ledger.leases
        books = self.gate._books
        ceilings = {books.dispatcher.ceiling(waiter.flow.band, now)}
        oldest = waiter.flow.band.oldest()
        is_overdue = (
            oldest is not None and now - oldest.seated_at >= waiter.flow.band.options.starvation_bound_s
        )
        if is_overdue:
            ceilings.add(books.dispatcher.top)
        state = instance.signal.state(now)
        is_open = state not in (State.BLIND, State.FROZEN) or self.gate.options.signal.on_blind == "local"
        limits = [instance.limit(ceiling, now) for ceiling in ceilings]
        limit = max((limit for limit in limits if limit is not None), default=None)
        lease = self._start(waiter, placement, waited_s, now)
        assert now <= waiter.latest_start_at, "granted after its deadline"
        if limit is not None and not was_alone and is_open:
            assert brute_force_peak(instance.ledger.leases.values()) <= limit + SLACK, (
                "peak above the ceiling"
            )
        assert not waiter.flow.tenant.limits.max_concurrency or (
            waiter.flow.tenant.running <= waiter.flow.tenant.limits.max_concurrency
        )
        return lease

    def take(self, step: Step, offered: int | None = None) -> Step:
        """Follow what a step says; every ticket moves along waiting -> running -> ended, once."""
        if offered is not None:
            self._take_decision(step.decision, offered)
        else:
            assert step.decision is None
        for admit in step.grants:
            assert admit.ticket in self.waiting, "granted what did not wait"
            self.waiting.remove(admit.ticket)
            self.running.add(admit.ticket)
        for refusal in step.refusals:
            assert refusal.ticket in self.waiting, "refused what did not wait"
            self.waiting.remove(refusal.ticket)
            self.ended.add(refusal.ticket)
            assert_well_formed(refusal)
        for ticket in step.cancelled:
            assert ticket in self.running, "superseded what did not run"
        return step

    def _take_decision(self, decision: Any, offered: int) -> None:
        assert decision is not None
        assert decision.ticket == offered
        if isinstance(decision, Admit):
            self.running.add(offered)
        elif isinstance(decision, Queued):
            assert decision.position >= 1
            self.waiting.add(offered)
        else:
            assert isinstance(decision, Refuse)
            assert_well_formed(decision)
            self.ended.add(offered)

    def check(self, step: Step, now: float) -> None:
        """All invariants at rest."""
        books = self.gate._books
        assert set(books.queue.waiters) == self.waiting
        assert {ticket for ticket in self.running if ticket in books.running} == self.running
        assert len(books.running) == len(self.running)
        for instance in books.pool.by_name.values():
            self._check_ledger(instance)
        self._check_counts()
        self._check_head(now)
        if self.waiting:
            assert step.wake_at is not None, "somebody waits and nobody will look"
            assert step.wake_at > now, "the shell would spin"

    def _check_ledger(self, instance: Instance) -> None:
        leases = instance.ledger.leases.values()
        present = [lease for lease in leases if not lease.is_drained]
        assert instance.ledger.held_tokens() == pytest.approx(sum(lease.held for lease in present))
        assert instance.ledger.peak_tokens() == pytest.approx(brute_force_peak(leases))
        assert instance.ledger.sequences == sum(lease.ask.sequences for lease in present)
        assert instance.ledger.seats == sum(lease.spread.seats for lease in present)
        context = instance.context_limit or math.inf
        unread = sum(
            min(lease.ask.prompt_tokens, context * lease.ask.sequences)
            for lease in leases
            if lease.first_token_at is None
        )
        assert instance.ledger.unread_prompt == pytest.approx(unread)
        assert all(lease.left >= 1 or not lease.ask.generates for lease in leases)

    def _check_counts(self) -> None:
        books = self.gate._books
        for band in books.queue.bands:
            flows = [flow for t in books.tenants.all() for flow in t.flows.values() if flow.band is band]
            assert band.queued == sum(len(flow.waiting) for flow in flows) == len(band.order)
            assert band.running == sum(flow.running for flow in flows)
            active = [f for f in flows if f.waiting or f.booked]
            assert band.active_weight == pytest.approx(sum(f.tenant.limits.weight for f in active))
        assert books.queue.queued_bytes == sum(w.ask.body_bytes for w in books.queue.waiters.values())
        assert all(count >= 0 for count in books.calendar.due.values())
        assert len(books.queue) <= self.gate.options.queue.max_requests
        for tenant in books.tenants.all():
            assert tenant.queued <= books.tenants.max_queued(tenant)
            for bucket in () if tenant.quota is None else (tenant.quota.requests, tenant.quota.tokens):
                assert bucket is None or bucket.level <= max(bucket.burst, bucket.booked) + SLACK

    def _check_head(self, now: float) -> None:
        """No band's head fits, unless a blocked head above it or an overdue one holds it back."""
        books, dispatcher = self.gate._books, self.gate._books.dispatcher
        for band in books.queue.bands:
            candidates = [
                waiter
                for waiter in books.queue.waiters.values()
                if waiter.flow.band is band and not waiter.flow.tenant.is_at_cap
            ]
            if not candidates:
                continue
            head = band.head()
            assert head is not None, "somebody could go, and the class offers nobody"
            least = min(waiter.flow.counter for waiter in candidates)
            assert head.flow.counter == pytest.approx(least), "not this tenant's turn"
            if not _has_overdue(books, now):
                kinds = LengthModel.kinds(head.ask.length_key, head.ask.max_output_tokens)
                ceiling = dispatcher.ceiling(band, now)
                placed = books.pool.place(head.ask, kinds, head.quantile, ceiling, now)
                assert placed.verdict is not Verdict.FITS, "the head fits and still waits"
            return


def _has_overdue(books: Books, now: float) -> bool:
    """Whether some class waits for its promotion, and so may hold back whoever fits."""
    for band in books.queue.bands:
        oldest = band.oldest()
        is_late = oldest is not None and now - oldest.seated_at >= band.starvation_bound_s
        if is_late and books.dispatcher.since_served(band) >= BETWEEN_PROMOTIONS and band.head() is not None:
            return True
    return False


def assert_well_formed(refusal: Refuse) -> None:
    """A refusal can be acted on."""
    if refusal.retry_after_s is None:
        assert refusal.detail
    else:
        assert 0 < refusal.retry_after_s < 1e7
