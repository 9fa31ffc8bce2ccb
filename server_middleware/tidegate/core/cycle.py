"""What every operation ends in: let go, start, make room, and say when to look again.

Law of this file: one order for everything. First those leave who may no longer start, then those start
who may, then the room is made to hold, and whenever that has changed the queue, once more. What comes
out is a value; acting on it is the shell's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.core.backoff import Backoff
from tidegate.core.books import Books
from tidegate.core.decisions import NOTHING, Admit, Decision, Queued, Reason, Refuse, Step, Uniform
from tidegate.core.dispatch import Choice
from tidegate.core.line import Waiter
from tidegate.core.pool import Placement
from tidegate.core.verdict import Verdict


@dataclass(slots=True)
class Effects:
    """What a step has brought about so far."""

    decision: Decision | None = None
    grants: list[Admit] = field(default_factory=list)
    refusals: list[Refuse] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)


class Cycle:
    """Runs steps over the books; holds only the plan of the next look."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._backoff = Backoff(books.options.backoff)
        self._look_at: float | None = None
        self.blocked_by: Verdict | None = None

    def start_at_once(self, waiter: Waiter, now: float) -> Step | None:
        """The whole cycle for an arrival that finds nobody waiting and fits; `None` where it must be seated.

        It goes through without a seat, and leaves behind what it would have left behind.
        """
        books, flow = self._books, waiter.flow
        has_turns = flow.turns is not None or waiter.ask.end_user is not None
        if books.queue.waiters or has_turns or flow.tenant.is_at_cap:
            return None
        placement = books.dispatcher.at_once(waiter, now)
        if placement is None:
            return None
        flow.pass_through()
        return Step(self._admit(waiter, placement, 0.0, now), (), (), waiter.supersedes)

    def follow_up(self, now: float, uniform: Uniform) -> Step:
        """Bring the queue to rest after something that neither answers anybody nor makes anybody leave it."""
        if self._books.queue.waiters or self.blocked_by is not None:
            return self.run(Effects(), now, uniform)
        return NOTHING  # nothing waits, and nothing did: all is at rest already

    def run(self, effects: Effects, now: float, uniform: Uniform, arrival: Waiter | None = None) -> Step:
        """Bring the queue to rest; `arrival` is the waiter just seated, whose decision is wanted."""
        if not self._books.queue.waiters and self.blocked_by is None:  # nothing waits, and nothing did
            self._rest(now)
            return Step(effects.decision, (), tuple(effects.refusals), tuple(effects.cancelled))
        for waiter in self._books.queue.expired(now):
            self.turn_away(waiter, Reason.WAIT_EXPIRED, effects, now, uniform)
        if self.blocked_by is not None:
            self._books.pool.limited(now, by=self.blocked_by)
        self._dispatch(effects, now)
        while self._make_room(effects, now, uniform, arrival) or self._expire_at(effects, now, uniform):
            self._dispatch(effects, now)
        if arrival is not None:
            self._settle_arrival(arrival, effects, now, uniform)
        if self._books.rate.is_loaded is not bool(self._books.queue.waiters):
            self._books.rate.tick(now, is_loaded=not self._books.rate.is_loaded)
        wants_reading = self._plan_look(now, uniform, has_granted=bool(effects.grants) or _admits(effects))
        return Step(
            decision=effects.decision,
            grants=tuple(effects.grants),
            refusals=tuple(effects.refusals),
            cancelled=tuple(effects.cancelled),
            wake_at=self._wake_at(now),
            wants_reading=wants_reading,
        )

    def turn_away(
        self, waiter: Waiter, reason: Reason, effects: Effects, now: float, uniform: Uniform
    ) -> None:
        """A waiter leaves with a refusal; what it was charged is given back."""
        self._books.queue.remove(waiter.ask.ticket)
        self.give_back(waiter, now)
        if reason is Reason.WAIT_EXPIRED and self._books.pool.is_shut(waiter.ask, now):
            reason = Reason.KV_BLIND
        effects.refusals.append(self._books.refusals.left(waiter, reason, now, uniform))

    def give_back(self, waiter: Waiter, now: float) -> None:
        """One that never started costs nothing."""
        quota = waiter.flow.tenant.quota
        if quota is not None:
            quota.settle(-1.0, -waiter.charged_tokens, now)

    def _dispatch(self, effects: Effects, now: float) -> None:
        while self._books.queue.waiters:
            choice = self._books.dispatcher.next(now)
            if choice is None:
                break
            effects.grants.append(self._start(choice, now))
        self.blocked_by = self._books.dispatcher.blocked_by if self._books.queue.waiters else None

    def _start(self, choice: Choice, now: float) -> Admit:
        waiter = choice.waiter
        self._books.dispatcher.started(choice)
        self._books.queue.remove(waiter.ask.ticket)
        return self._admit(waiter, choice.placement, max(0.0, now - waiter.seated_at), now)

    def _admit(self, waiter: Waiter, placement: Placement, waited_s: float, now: float) -> Admit:
        lease = self._books.running.start(waiter, placement, waited_s, now)
        return Admit(waiter.ask.ticket, lease.instance, waited_s)

    def _make_room(self, effects: Effects, now: float, uniform: Uniform, arrival: Waiter | None) -> bool:
        if arrival is None or arrival.ask.ticket not in self._books.queue.waiters:
            return False
        found = self._books.room.victim(arrival)
        if found is None:
            return False
        self.turn_away(*found, effects, now, uniform)
        return True

    def _expire_at(self, effects: Effects, now: float, uniform: Uniform) -> bool:
        """Those whose last instant is this one have had their chance."""
        due_at = self._books.queue.next_expiry()
        if due_at is None or due_at > now:
            return False
        for waiter in self._books.queue.expired(now, at_once=True):
            self.turn_away(waiter, Reason.WAIT_EXPIRED, effects, now, uniform)
        return True

    def _settle_arrival(self, arrival: Waiter, effects: Effects, now: float, uniform: Uniform) -> None:
        """Move the arrival's own outcome from the lists to the decision; it may still be hopeless."""
        ticket = arrival.ask.ticket
        if ticket in self._books.queue.waiters:
            position, wait_s = self._books.refusals.outlook(arrival)
            if not self._is_hopeless(arrival, wait_s, now):
                effects.decision = Queued(
                    ticket=ticket,
                    position=position,
                    estimated_wait_s=wait_s,
                    latest_start_at=arrival.latest_start_at,
                )
                return
            self.turn_away(arrival, Reason.WAIT_TOO_LONG, effects, now, uniform)
        own: list[Admit | Refuse] = [item for item in effects.grants if item.ticket == ticket]
        own += [item for item in effects.refusals if item.ticket == ticket]
        effects.decision = own[0]
        effects.grants = [item for item in effects.grants if item.ticket != ticket]
        effects.refusals = [item for item in effects.refusals if item.ticket != ticket]

    def _is_hopeless(self, arrival: Waiter, wait_s: float | None, now: float) -> bool:
        """Waiting would only waste both sides' time; only a rate measured under load may say so."""
        if wait_s is None or arrival.is_returning or not self._books.rate.is_measured:
            return False
        return now + wait_s > arrival.latest_start_at

    def _plan_look(self, now: float, uniform: Uniform, *, has_granted: bool) -> bool:
        """When to look again while somebody waits; a look at a full engine wants a fresh reading."""
        if not self._books.queue.waiters:
            self._rest(now)
            return False
        if has_granted:
            self._backoff.reset()
        if self._look_at is not None and self._look_at > now and not has_granted:
            return False
        self._look_at = now + self._backoff.next_wait_s(uniform)
        return self.blocked_by in (Verdict.KV, Verdict.LEVEL, Verdict.ENGINE_QUEUE)

    def _rest(self, now: float) -> None:
        """Nobody waits: there is no next look, and the next run of looks begins at the base."""
        self._look_at = None
        self._backoff.reset()
        self._books.rate.tick(now, is_loaded=False)

    def _wake_at(self, now: float) -> float | None:
        if not self._books.queue.waiters:
            return None
        wake_at = self._look_at
        for instant in (
            self._books.queue.next_expiry(),
            self._books.dispatcher.next_overdue_at(now),
            self._books.pool.changes_at(now),
        ):
            if instant is not None and (wake_at is None or instant < wake_at):
                wake_at = instant
        return wake_at


def _admits(effects: Effects) -> bool:
    return isinstance(effects.decision, Admit)
