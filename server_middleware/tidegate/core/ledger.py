"""KV leases of one engine instance: what they hold, what is left to come, and the peak ahead.

Law of this file: whether a request fits is asked of the future, not of the present. Every lease holds
`share * prompt + seen` tokens and has `left` more to generate per sequence. All sequences grow one token
per decode step, so the occupancy is greatest just before one of them ends; with the leases sorted by
`left`, longest first, the peak is

    max over k of ( sum of held_1..k  +  sequences_1..k * left_k )

Source: the Past-Future scheduler, ASPLOS'25, arXiv 2507.10150. The terms do not change while all run on
at the same pace, which is what lets `earliest_fit` look into the future with the same array (`occupancy`).

Two bounds of the peak follow every change at no cost, so that most candidates are judged without a look at
every lease: adding up what came and grew bounds it from above, and the occupancy at one moment from below.
Whoever changes a lease says so by `refresh`, or by `changed` after many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.core.decisions import Ask
from tidegate.core.lengths import Books, Kinds
from tidegate.core.occupancy import Demand, Occupancy, projected_peak
from tidegate.core.wide import ONE, Spread

DEVIATIONS = 1.5  # standard deviations of the projected occupancy that are kept free
ROUNDING = 1e-3  # tokens by which sums kept up to date may differ from sums made anew


@dataclass(slots=True, eq=False)
class Lease:
    """One running request; tokens. `held` and `left` are derived, kept for speed by `refresh`."""

    ask: Ask
    instance: str
    kinds: Kinds
    quantile: float
    started_at: float
    waited_s: float
    predicted: float  # total output per sequence
    prompt: float  # as estimated by what is known of the tenant's text now
    share: float  # of the prompt that is charged: measured over estimated
    lag_tokens: float  # what others generate per sequence while this one's prompt is read
    sequences: int = 1  # at once
    pad: float = 0.0  # half a block for each of those
    charged_tokens: float = 0.0  # to the quota ...
    charged_virtual: float = 0.0  # ... and to the tenant's turn
    books: Books | None = None  # where its length is written down at its end
    seen: float = 0.0  # output so far, all sequences
    reported: float = 0.0  # what its stream has shown of that
    first_token_at: float | None = None
    last_token_at: float | None = None
    is_covered: bool = False  # a reading has been taken since its first token
    is_drained: bool = False  # the engine must have finished, though our reader has not
    is_caller_gone: bool = False
    is_cancelled: bool = False
    blocked_since: float | None = None
    predicted_at: float = 0.0  # output per sequence at the last prediction
    held: float = 0.0
    left: float = 0.0
    is_uncertain: bool = True  # may run on beyond its prediction; one predicted to use its maximum may not
    spread: Spread = ONE

    @property
    def asked(self) -> int:
        """Sequences, at once or one after the other."""
        return self.ask.sequences

    @property
    def grown(self) -> float:
        """What it holds beside its prompt."""
        return self.held - self.share * self.prompt * self.spread.part

    @property
    def is_prefilled(self) -> bool:
        """Its first token has been seen or inferred."""
        return self.first_token_at is not None

    def refresh(self) -> None:
        """Bring `held` and `left` in line with the other fields."""
        ask, seen, predicted = self.ask, self.seen, self.predicted
        self.held = self.share * self.prompt + seen + self.pad
        if self.spread is not ONE:
            self._spread_out()
        if not ask.generates:
            self.left, self.is_uncertain = 0.0, False
            return
        # What is only inferred does not end before its release: a block of it is always still to come.
        least = 1.0 if ask.streams else max(1.0, 2 * self.pad / self.sequences)
        left = predicted - seen / self.sequences
        if left < least:
            left = least
        self.left = left + self.lag_tokens if self.first_token_at is None else left
        declared = ask.max_output_tokens
        self.is_uncertain = declared is None or predicted < declared

    def _spread_out(self) -> None:
        """Of all it holds in the end, only what is there at once."""
        at_once, _, part = self.spread
        seen, whole = self.seen, at_once * self.predicted
        if at_once < self.ask.sequences and seen > whole:
            seen = whole / 2  # the first have gone; the others are half way
        self.held = self.share * self.prompt * part + seen + self.pad


@dataclass(slots=True)
class Ledger:
    """The leases of one instance. Not safe for concurrent use."""

    leases: dict[int, Lease] = field(default_factory=dict)
    sequences: int = 0  # asked for
    seats: int = 0  # of the engine's bound on sequences
    deviations: float = DEVIATIONS
    unread_prompt: float = 0.0  # prompt tokens of leases not yet past their first token
    _present: Occupancy = field(default_factory=Occupancy)
    _held: float | None = 0.0  # `None`: to be summed anew
    _most: float = 0.0  # the peak is not above this
    _moment: float = 0.0  # a moment ahead, in steps ...
    _least: float = 0.0  # ... at which the occupancy is known: the peak is not below this
    _risk: float | None = None  # as of the last settling
    _asked: tuple[Demand, float] | None = None  # the last candidate, and the peak with it

    def add(self, lease: Lease) -> None:
        """Charge a lease."""
        lease.refresh()
        held, left, sequences = lease.held, lease.left, lease.sequences
        ask = lease.ask
        self.leases[ask.ticket] = lease
        self._present.insert(lease)
        self.sequences += ask.sequences
        self.seats += lease.spread[1]
        self.unread_prompt += lease.prompt
        if self._held is not None:
            self._held += held
        self._most += held + sequences * left
        if left >= self._moment:
            self._least += held + sequences * self._moment

    def remove(self, ticket: int) -> Lease:
        """Take a lease off the books."""
        lease = self.leases.pop(ticket)
        if not lease.is_drained:
            self._drop(lease)
        if not self.leases:
            self.unread_prompt = 0.0
        elif lease.first_token_at is None:
            self._read(lease)
        return lease

    def drain(self, lease: Lease) -> None:
        """The engine has certainly finished this one: it holds nothing, though its app still runs."""
        lease.is_drained = True
        self._drop(lease)

    def mark_first_token(self, lease: Lease, now: float) -> None:
        """Its prompt has been read."""
        if lease.first_token_at is None:
            lease.first_token_at = now
            self._read(lease)

    def restate(self, lease: Lease, prompt: float) -> None:
        """Its prompt is now known to be of this size."""
        if lease.first_token_at is None:
            self.unread_prompt = max(0.0, self.unread_prompt + prompt - lease.prompt)
        lease.prompt = prompt
        self.refresh(lease)

    def refresh(self, lease: Lease) -> None:
        """Bring one lease's figures up to date, and the sums with them."""
        held, left, sequences = lease.held, lease.left, lease.sequences
        lease.refresh()
        if lease.is_drained:
            return
        grown = lease.held - held
        if self._held is not None:
            self._held += grown
        if lease.left > left:  # it is now there at moments at which it was not expected any more
            grown = lease.held + sequences * lease.left
        self._most += max(0.0, grown)
        self._least += self._at_moment(lease.held, lease.left, sequences)
        self._least -= self._at_moment(held, left, sequences)
        self._present.unsettle()

    def changed(self) -> None:
        """Many have moved; sum and sort anew before the next question."""
        self._present.unsettle()
        self._held = None

    @property
    def is_certain(self) -> bool:
        """Whether there are leases and none can outlive its prediction. O(n)."""
        return bool(self.leases) and not any(lease.is_uncertain for lease in self.leases.values())

    def held_tokens(self) -> float:
        """What all leases hold now."""
        if self._held is None:
            self._held = self._least = sum(lease.held for lease in self._present)
            self._moment, self._most = 0.0, math.inf
        return self._held

    def peak_tokens(self) -> float:
        """The projected peak of all leases."""
        self._settle()
        return self._present.peak

    def risk(self) -> float:
        """How far above the projected peak chance may carry the occupancy, as a share of the peak."""
        self._settle()
        if self._risk is None:
            self._risk = self._present.chance(self.deviations)
        return self._risk

    def surely_fits(self, demand: Demand, limit: float) -> bool:
        """Whether the peak with this candidate stays below a limit, seen without a look at every lease."""
        if self._held is None:
            self.held_tokens()
        return self._most + demand.held + demand.sequences * demand.left <= limit - ROUNDING

    def surely_exceeds(self, demand: Demand, limit: float) -> bool:
        """Whether it does not, seen in the same way."""
        if self._held is None:
            self.held_tokens()
        at_moment = self._at_moment(demand.held, demand.left, demand.sequences)
        return self._least + at_moment > limit + ROUNDING

    def fits(self, demand: Demand, limit: float) -> bool:
        """Whether the projected peak with this candidate stays below a limit."""
        self._settle()
        if self.surely_fits(demand, limit):
            return True
        return not self.surely_exceeds(demand, limit) and self.peak_with(demand) <= limit

    def peak_with(self, demand: Demand) -> float:
        """The projected peak if this candidate ran as well."""
        self._settle()
        if self._asked is None or self._asked[0] != demand:
            self._asked = (demand, self._present.peak_with(demand))
        return self._asked[1]

    def peak_beside(self, demands: Sequence[Demand]) -> float:
        """The projected peak if all of these ran as well. O(n log n)."""
        everyone = [Demand(holder.held, holder.left, holder.sequences) for holder in self._present]
        return projected_peak([*everyone, *demands])

    def earliest_fit(self, head: Demand, limit: float) -> float:
        """Decode steps until `head` first fits under `limit`, if nobody else is admitted meanwhile."""
        self._settle()
        return self._present.earliest_fit(head, limit)

    def would_delay(self, head: Demand, passer: Demand, steps: float, limit: float) -> bool:
        """Whether after `steps` decode steps the head no longer fits beside what is left of a passer."""
        if passer.left <= steps:
            return False
        self._settle()
        rest = Demand(passer.held + passer.sequences * steps, passer.left - steps, passer.sequences)
        return projected_peak([*self._present.after(steps), head, rest]) > limit

    def _read(self, lease: Lease) -> None:
        """Its prompt is unread no more."""
        unread = self.unread_prompt - lease.prompt
        self.unread_prompt = unread if unread > 0.0 else 0.0

    def _at_moment(self, held: float, left: float, sequences: int) -> float:
        """What somebody would hold at the moment whose occupancy is known."""
        return held + sequences * self._moment if left >= self._moment else 0.0

    def _drop(self, lease: Lease) -> None:
        sequences = lease.sequences
        self.sequences -= lease.ask.sequences
        self.seats -= lease.spread.seats
        if not self._present.discard(lease):
            self._held = self._most = self._moment = self._least = 0.0
            return
        held = lease.held
        if self._held is not None:
            self._held -= held
        if lease.left >= self._moment:
            self._least -= held + sequences * self._moment

    def _settle(self) -> None:
        if self._present.is_settled:
            return
        self._present.settle()
        self._held = self._present.total
        self._moment, self._least = self._present.fullest()
        self._most = self._least
        self._risk = self._asked = None
