"""The gate: offer, release, cancel, observe, advance.

Law of this file: it composes and decides nothing by itself. Every operation brings the clock up, changes
the books, and ends in the cycle, which lets go who may no longer start, starts who may, and says what the
shell must do and when to call again. The charge is made inside it: between "may it pass?" and "it has
passed" nothing else can happen. Not safe for concurrent use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tidegate.core.books import Books
from tidegate.core.cycle import Cycle, Effects
from tidegate.core.decisions import Ask, Ending, InvalidAsk, Reason, Refuse, Settlement, Step, Uniform
from tidegate.core.intake import Intake
from tidegate.core.options import GateOptions, TenantLimits
from tidegate.core.quota import Left
from tidegate.core.reading import Reading
from tidegate.core.retry_calendar import key_of
from tidegate.core.snapshot import statistics
from tidegate.core.statistics import Statistics

_ABANDONED = Settlement(ending=Ending.ABANDONED)


class Gate:
    """Admission for one model behind one door.

    Args:
        options: checked at their construction.
        now: seconds on the monotonic clock that every later call uses too.
    """

    def __init__(self, options: GateOptions, now: float) -> None:
        self.options = options
        self._now = now
        self._books = Books(options, now)
        self._intake = Intake(self._books)
        self._cycle = Cycle(self._books)

    def precheck(self, tenant: str, priority_class: str, now: float, uniform: Uniform) -> Refuse | None:
        """Judge a request before its body is read; charges nothing, but may book a slot.

        Raises:
            InvalidAsk: the class does not exist.
        """
        self._intake.require_class(priority_class)
        if self._intake.needs_no_precheck(tenant):
            return None
        self._bring_up(now)
        return self._intake.precheck(tenant, priority_class, self._now, uniform)

    def offer(self, ask: Ask, now: float, uniform: Uniform) -> Step:
        """Decide on a request: start it, seat it, or refuse it.

        Raises:
            InvalidAsk: unknown class, or a ticket already in use; nothing has changed.
        """
        books, cycle, ticket = self._books, self._cycle, ask.ticket
        if ticket in books.queue.waiters or ticket in books.running:
            raise InvalidAsk(f"ticket is {ticket}, which is in use; expected one not waiting or running.")
        if ask.priority_class not in books.queue.by_name:
            self._intake.require_class(ask.priority_class)
        now = self._bring_up(now)
        outcome = self._intake.judge(ask, now, uniform)
        if isinstance(outcome, Refuse):
            return cycle.run(Effects(decision=outcome), now, uniform)
        step = cycle.start_at_once(outcome, now)
        if step is not None:
            return step
        books.queue.push(outcome)
        return cycle.run(Effects(cancelled=list(outcome.supersedes)), now, uniform, arrival=outcome)

    def cancel(self, ticket: int, now: float, uniform: Uniform) -> Step:
        """A waiter has left; one that was just granted counts as abandoned. Unknown tickets: nothing."""
        now = self._bring_up(now)
        waiter = self._books.queue.remove(ticket)
        if waiter is None:
            return self.release(ticket, _ABANDONED, now, uniform)
        self._cycle.give_back(waiter, now)
        key = key_of(waiter.ask)
        if key is not None and waiter.ask.identity is not None:
            self._books.calendar.keep_place(waiter.flow, key, waiter.arrived_at, now)
        return self._cycle.run(Effects(), now, uniform)

    def release(self, ticket: int, settlement: Settlement, now: float, uniform: Uniform) -> Step:
        """A lease has ended. Idempotent."""
        now = self._bring_up(now)
        self._books.running.end(ticket, settlement, now)
        return self._cycle.follow_up(now, uniform)

    def progress(self, ticket: int, output_tokens: float, now: float) -> None:
        """Output tokens of all sequences seen in the stream so far; the first call marks the first one.

        Raises:
            InvalidAsk: the count is negative or not finite; nothing has changed.
        """
        if not (math.isfinite(output_tokens) and output_tokens >= 0):
            raise InvalidAsk(f"output_tokens is {output_tokens!r}, expected a finite count of at least 0.")
        self._tell(now)
        self._books.running.progress(ticket, output_tokens, self._now)

    def caller_gone(self, ticket: int, now: float) -> None:
        """A running request's socket has gone; its lease stays until the app returns."""
        self._tell(now)
        self._books.running.caller_gone(ticket)

    def sending_blocked(self, ticket: int, blocked: bool, now: float) -> None:
        """Our own `send` is blocked on a slow reader, or no longer is."""
        self._tell(now)
        self._books.running.sending_blocked(ticket, blocked=blocked, now=self._now)

    def observe(self, readings: Sequence[Reading], now: float, uniform: Uniform) -> Step:
        """Take in what the probe has read."""
        self._bring_up(now)
        self._books.running.follow(readings, self._now)
        self._books.running.restate(readings, self._now)
        self._books.pool.observe(readings, self._now)
        effects = Effects()
        if any(reading.asleep for reading in readings):
            for waiter in list(self._books.queue.waiters.values()):
                if self._books.pool.is_asleep(waiter.ask):
                    self._cycle.turn_away(waiter, Reason.ASLEEP, effects, self._now, uniform)
        return self._cycle.run(effects, self._now, uniform)

    def probe_failed(self, instance: str | None, now: float, uniform: Uniform) -> Step:
        """The probe could not read; from here on the age of the last reading speaks for itself."""
        if instance is not None:
            self._books.pool.could_not_read(instance)
        return self.advance(now, uniform)

    def advance(self, now: float, uniform: Uniform) -> Step:
        """Time has passed."""
        return self._cycle.follow_up(self._bring_up(now), uniform)

    def set_limits(
        self, tenants: dict[str, TenantLimits], default_tenant: TenantLimits, now: float, uniform: Uniform
    ) -> Step:
        """Other limits of tenants from now on; what runs or waits stays, and buckets are as full as before.

        Raises:
            InvalidOption: a class that does not exist; nothing has changed.
        """
        options = replace(self.options, tenants=tenants, default_tenant=default_tenant)
        self._bring_up(now)
        self.options = self._books.options = options
        self._books.tenants.renew(options, self._now)
        return self._cycle.run(Effects(), self._now, uniform)

    def estimate_prompt_tokens(self, tenant: str, model: str, ascii_bytes: int, other_bytes: int) -> float:
        """Tokens expected of a prompt of so many ASCII and other bytes."""
        return self._books.prompts.estimate(tenant, model, ascii_bytes, other_bytes)

    @property
    def queued_bytes(self) -> int:
        """Body bytes of those who wait."""
        return self._books.queue.queued_bytes

    def quota_left(self, tenant: str, now: float) -> tuple[Left, ...]:
        """What is left of this tenant's quota; nothing where it has none."""
        self._tell(now)
        quota = self._books.tenants.get(tenant, self._now).quota
        return () if quota is None else quota.left(self._now)

    def outlook(self, ticket: int, now: float) -> tuple[int, float | None] | None:
        """A waiter's position (from 1) and estimated wait in seconds; `None` for who does not wait.

        Requests of other tenants of its class all count as if they went before it.
        """
        self._tell(now)
        waiter = self._books.queue.waiters.get(ticket)
        if waiter is None:
            return None
        position, wait_s = self._books.refusals.outlook(waiter)
        mine = (waiter.order, waiter.sequence)
        behind = sum((other.order, other.sequence) > mine for other in waiter.flow.waiting.values())
        place = max(1, position - behind)
        return place, None if wait_s is None else wait_s * place / position

    def statistics(self, now: float) -> Statistics:
        """A frozen snapshot."""
        return statistics(self._books, self._cycle.blocked_by, max(self._now, now))

    def _tell(self, now: float) -> float:
        """One clock for everything; it never runs backwards, and nonsense does not move it."""
        if self._now < now < math.inf:
            self._now = now
        return self._now

    def _bring_up(self, now: float) -> float:
        if self._now < now < math.inf:
            self._now = now
        else:
            now = self._now
        self._books.bring_up(now)
        return now
