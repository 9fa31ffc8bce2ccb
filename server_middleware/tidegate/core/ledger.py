"""KV leases of one engine instance: what they hold, what is left to come, and the peak ahead.

Law of this file: whether a request fits is asked of the future, not of the present. Every lease holds
`share * prompt + seen` tokens and has `left` more to generate per sequence. All sequences grow one token
per decode step, so the occupancy is greatest just before one of them ends; with the leases sorted by
`left`, longest first, the peak is

    max over k of ( sum of held_1..k  +  sequences_1..k * left_k )

Source: the Past-Future scheduler, ASPLOS'25, arXiv 2507.10150. The terms do not change while all run on
at the same pace, which is what lets `earliest_fit` look into the future with the same array.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add, attrgetter, mul, neg
from typing import NamedTuple

from tidegate.core.decisions import Ask
from tidegate.core.lengths import Kinds

DEVIATIONS = 1.3  # standard deviations of the projected occupancy that are kept free
MOMENTS = 16  # of the future at which `risk` looks

_LEFT = attrgetter("left")
_HELD = attrgetter("held")
_SEQUENCES = attrgetter("sequences")
_IS_UNCERTAIN = attrgetter("is_uncertain")


class Demand(NamedTuple):
    """What a candidate would hold at once, generate per sequence, and in how many sequences."""

    held: float
    left: float
    sequences: int


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
    charged_virtual: float = 0.0
    charged_tokens: float = 0.0
    sequences: int = 1
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
    pad: float = 0.0  # half a block per sequence
    is_uncertain: bool = True  # may run on beyond its prediction; one predicted to use its maximum may not

    @property
    def is_prefilled(self) -> bool:
        """Its first token has been seen or inferred."""
        return self.first_token_at is not None

    def refresh(self) -> None:
        """Bring `held` and `left` in line with the other fields."""
        self.held = self.share * self.prompt + self.seen + self.pad
        if not self.ask.generates:
            self.left, self.is_uncertain = 0.0, False
            return
        # What is only inferred does not end before its release: a block of it is always still to come.
        least = 1.0 if self.ask.streams else max(1.0, 2 * self.pad / self.sequences)
        self.left = max(least, self.predicted - self.seen / self.sequences)
        declared = self.ask.max_output_tokens
        self.is_uncertain = declared is None or self.predicted < declared
        if self.first_token_at is None:
            self.left += self.lag_tokens


@dataclass(slots=True)
class Ledger:
    """The leases of one instance. Not safe for concurrent use."""

    leases: dict[int, Lease] = field(default_factory=dict)
    sequences: int = 0
    deviations: float = DEVIATIONS
    unread_prompt: float = 0.0  # prompt tokens of leases not yet past their first token
    _order: list[Lease] = field(default_factory=list)
    _is_sorted: bool = True
    _lefts: list[float] = field(default_factory=list)  # descending
    _held: list[float] = field(default_factory=list)  # running sums
    _counts: list[int] = field(default_factory=list)
    _points: list[float] = field(default_factory=list)  # occupancy when the k-th longest ends
    _peak: float = 0.0
    _risk: float | None = None  # as of the last sort

    def add(self, lease: Lease) -> None:
        """Charge a lease."""
        lease.refresh()
        self.leases[lease.ask.ticket] = lease
        self._order.append(lease)
        self.sequences += lease.sequences
        self.unread_prompt += lease.prompt
        self._is_sorted = False

    def remove(self, ticket: int) -> Lease:
        """Take a lease off the books."""
        lease = self.leases.pop(ticket)
        if not lease.is_drained:
            self._drop(lease)
        if not lease.is_prefilled:
            self.unread_prompt = max(0.0, self.unread_prompt - lease.prompt)
        if not self.leases:
            self.unread_prompt = 0.0
        return lease

    def drain(self, lease: Lease) -> None:
        """The engine has certainly finished this one: it holds nothing, though its app still runs."""
        lease.is_drained = True
        self._drop(lease)

    def mark_first_token(self, lease: Lease, now: float) -> None:
        """Its prompt has been read."""
        if lease.first_token_at is None:
            lease.first_token_at = now
            self.unread_prompt = max(0.0, self.unread_prompt - lease.prompt)

    def restate(self, lease: Lease, prompt: float) -> None:
        """Its prompt is now known to be of this size."""
        if lease.first_token_at is None:
            self.unread_prompt = max(0.0, self.unread_prompt + prompt - lease.prompt)
        lease.prompt = prompt
        lease.refresh()
        self._is_sorted = False

    def changed(self) -> None:
        """Some lease's figures have moved; sort again before the next question."""
        self._is_sorted = False

    def held_tokens(self) -> float:
        """What all leases hold now."""
        self._sort()
        return self._held[-1] if self._held else 0.0

    def peak_tokens(self) -> float:
        """The projected peak of all leases."""
        self._sort()
        return self._peak

    def risk(self) -> float:
        """How far above the projected peak chance may carry the occupancy, as a share of the peak.

        If `k` of `n` leases are expected to be there at some moment, each with probability `k/n`, the
        occupancy then varies by `sqrt((1 - k/n) / k)` of itself; leases that cannot outlive their
        prediction take their share off the variance. The moment that matters is the one where occupancy
        and so many standard deviations are greatest together; some sixteen are looked at.
        """
        self._sort()
        if self._risk is None:
            self._risk = self._chance() if self._points and self.deviations else 0.0
        return self._risk

    def peak_with(self, demand: Demand) -> float:
        """The projected peak if this candidate ran as well."""
        self._sort()
        held, left, sequences = demand
        place = bisect_left(self._lefts, -left, key=neg)
        before_held = self._held[place - 1] if place else 0.0
        before = self._counts[place - 1] if place else 0
        peak = max(self._peak, before_held + held + (before + sequences) * left)
        later = self._lefts[place:]
        if not later:
            return peak
        if sequences > 1:
            later = [sequences * other for other in later]
        highest: float = max(map(add, self._points[place:], later))
        return max(peak, held + highest)

    def peak_beside(self, demands: Sequence[Demand]) -> float:
        """The projected peak if all of these ran as well. O(n log n)."""
        self._sort()
        everyone = [Demand(lease.held, lease.left, lease.sequences) for lease in self._order]
        return projected_peak([*everyone, *demands])

    def earliest_fit(self, head: Demand, limit: float) -> float:
        """Decode steps until `head` first fits under `limit`, if nobody else is admitted meanwhile."""
        self._sort()
        low, high = 0, len(self._points)
        while low < high:  # the largest number of remaining leases beside which it fits
            middle = (low + high + 1) // 2
            if self._peak_after(middle, head) <= limit:
                low = middle
            else:
                high = middle - 1
        return self._ends_at(low)

    def would_delay(self, head: Demand, passer: Demand, steps: float, limit: float) -> bool:
        """Whether after `steps` decode steps the head no longer fits beside what is left of a passer."""
        if passer.left <= steps:
            return False
        rest = Demand(passer.held + passer.sequences * steps, passer.left - steps, passer.sequences)
        still = [
            Demand(lease.held + lease.sequences * steps, lease.left - steps, lease.sequences)
            for lease in self._order[: bisect_left(self._lefts, -steps, key=neg)]
        ]
        return projected_peak([*still, head, rest]) > limit

    def _ends_at(self, remaining: int) -> float:
        """When all but the `remaining` longest leases have ended."""
        return self._lefts[remaining] if remaining < len(self._lefts) else 0.0

    def _peak_after(self, remaining: int, head: Demand) -> float:
        """The peak once only the `remaining` longest leases still run and the head starts then.

        Counted from now, the terms of those that run stay as they are; the head adds what it then holds.
        """
        starts_at = self._ends_at(remaining)
        ends_at = starts_at + head.left
        place = bisect_left(self._lefts, -ends_at, hi=remaining, key=neg)
        held = self._held[place - 1] if place else 0.0
        before = self._counts[place - 1] if place else 0
        peak = held + before * ends_at + head.held + head.sequences * head.left
        peak = max(peak, max(self._points[:place], default=0.0))
        later = zip(self._points[place:remaining], self._lefts[place:remaining], strict=True)
        grown = [point + head.sequences * (left - starts_at) for point, left in later]
        return max(peak, head.held + max(grown)) if grown else peak

    def _chance(self) -> float:
        present = len(self._points)
        uncertain = self.deviations**2 * sum(map(_IS_UNCERTAIN, self._order)) / present
        worst = self._peak
        for index in range(0, present, 1 + present // MOMENTS):
            deviation = math.sqrt(uncertain * (1 / (index + 1) - 1 / present))
            worst = max(worst, self._points[index] * (1 + deviation))
        return worst / self._peak - 1 if self._peak else 0.0

    def _drop(self, lease: Lease) -> None:
        self._order.remove(lease)
        self.sequences -= lease.sequences
        self._is_sorted = False

    def _sort(self) -> None:
        if self._is_sorted:
            return
        order = self._order
        order.sort(key=_LEFT, reverse=True)
        self._lefts = list(map(_LEFT, order))
        self._held = list(accumulate(map(_HELD, order)))
        self._counts = list(accumulate(map(_SEQUENCES, order)))
        self._points = list(map(add, self._held, map(mul, self._counts, self._lefts)))
        self._peak = max(self._points, default=0.0)
        self._risk = None
        self._is_sorted = True


def projected_peak(demands: Sequence[Demand]) -> float:
    """The formula itself, for any set. O(n log n)."""
    peak = held = 0.0
    sequences = 0
    for demand in sorted(demands, key=_LEFT, reverse=True):
        held += demand.held
        sequences += demand.sequences
        peak = max(peak, held + sequences * demand.left)
    return peak
