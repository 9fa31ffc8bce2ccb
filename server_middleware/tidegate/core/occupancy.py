"""The occupancy of one engine's cache over the steps ahead, as running sums over the leases.

Law of this file: sorted once, then kept in order. A lease that comes or goes moves only what lies behind
its place; only when the leases themselves have grown is everything sorted anew, at the next question.

With the leases by what is left of them, longest first, the occupancy just before the k-th of them ends is
`held_1..k + sequences_1..k * left_k`, and the greatest of these is the peak (see `ledger`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import attrgetter, mul, neg, sub
from typing import Protocol

MOMENTS = 16  # of the future at which `chance` looks

_LEFT = attrgetter("left")
_HELD = attrgetter("held")
_SEQUENCES = attrgetter("sequences")
_IS_UNCERTAIN = attrgetter("is_uncertain")


@dataclass(slots=True)
class Demand:
    """What a candidate would hold at once, generate per sequence, and in how many sequences."""

    held: float
    left: float
    sequences: int


class Holder(Protocol):
    """Whoever holds cache: tokens `held` now, `left` more to come in each of `sequences`."""

    held: float
    left: float
    sequences: int
    is_uncertain: bool


class Occupancy:
    """Sums over all who are present; `peak` and what it is made of hold after `settle`."""

    def __init__(self) -> None:
        self._order: list[Holder] = []
        self._rights: list[float] = []  # minus what is left of each, ascending
        self._each: list[float] = []
        self._sizes: list[int] = []
        self._held: list[float] = []  # running sums
        self._points: list[float] = []  # occupancy when the k-th longest ends
        self._settled = 0  # so many of the running sums hold
        self._is_sorted = True
        self._uncertain = 0  # so many may outlive their prediction
        self._sequences = 0
        self.peak = 0.0

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._order)

    @property
    def is_settled(self) -> bool:
        """Whether `peak` holds."""
        return self._is_sorted and self._settled == len(self._order) == len(self._points)

    def insert(self, holder: Holder) -> None:
        """Somebody has come."""
        self._sequences += holder.sequences
        if not self._is_sorted:
            self._order.append(holder)
            return
        right = -holder.left
        place = bisect_right(self._rights, right)
        self._order.insert(place, holder)
        self._rights.insert(place, right)
        self._each.insert(place, holder.held)
        self._sizes.insert(place, holder.sequences)
        self._uncertain += holder.is_uncertain
        if place < self._settled:
            self._settled = place

    def discard(self, holder: Holder) -> bool:
        """Somebody has gone. Returns whether others are there."""
        order = self._order
        self._sequences -= holder.sequences
        if not self._is_sorted:
            order.remove(holder)
            return bool(order)
        place = order.index(holder, bisect_left(self._rights, -holder.left))
        del order[place], self._rights[place], self._each[place], self._sizes[place]
        self._uncertain -= holder.is_uncertain
        if place < self._settled:
            self._settled = place
        return bool(order)

    def unsettle(self) -> None:
        """Some have changed; they are sorted anew before the next question."""
        self._is_sorted = False

    def settle(self) -> None:
        """Bring everything up to date. O(n), or O(n log n) where somebody has changed."""
        order = self._order
        if not self._is_sorted:
            order.sort(key=_LEFT, reverse=True)
            self._rights = list(map(neg, map(_LEFT, order)))
            self._each = list(map(_HELD, order))
            is_plain = self._sequences == len(order)
            self._sizes = [1] * len(order) if is_plain else list(map(_SEQUENCES, order))
            self._uncertain = sum(map(_IS_UNCERTAIN, order))
            self._is_sorted, self._settled = True, 0
        first = self._settled
        counts: Iterable[int] = range(first + 1, len(order) + 1)
        if self._sequences != len(order):
            counts = islice(accumulate(self._sizes), first, None)
        if first:
            before = self._held[first - 1]
            held = list(accumulate(self._each[first:], initial=before))[1:]
            rights = self._rights[first:]
        else:
            held, rights = list(accumulate(self._each)), self._rights
        self._held[first:] = held
        self._points[first:] = map(sub, held, map(mul, counts, rights))
        self._settled = len(order)
        self.peak = max(self._points, default=0.0)

    @property
    def total(self) -> float:
        """What all hold now."""
        return self._held[-1] if self._held else 0.0

    def fullest(self) -> tuple[float, float]:
        """The moment of the peak, in steps from now, and the peak."""
        if not self._points:
            return 0.0, 0.0
        return -self._rights[self._points.index(self.peak)], self.peak

    def peak_with(self, demand: Demand) -> float:
        """The peak if this candidate were there as well."""
        held, left, sequences = demand.held, demand.left, demand.sequences
        place = bisect_left(self._rights, -left)
        before_held = self._held[place - 1] if place else 0.0
        before = sum(self._sizes[:place])
        peak = max(self.peak, before_held + held + (before + sequences) * left)
        if place == len(self._order):
            return peak
        rights = self._rights[place:]
        if sequences > 1:
            rights = [sequences * right for right in rights]
        highest: float = max(map(sub, self._points[place:], rights))
        return max(peak, held + highest)

    def chance(self, deviations: float) -> float:
        """By what share of the peak so many standard deviations may carry the occupancy above it.

        If `k` of `n` are expected to be there at some moment, each with probability `k/n`, the occupancy
        then varies by `sqrt((1 - k/n) / k)` of itself; who cannot outlive its prediction takes its share
        off the variance. The moment that matters is the one where occupancy and so many deviations are
        greatest together; some sixteen are looked at.
        """
        if not self._uncertain or not deviations or not self.peak:
            return 0.0
        present = len(self._points)
        share = deviations * math.sqrt(self._uncertain / present)
        step = 1 + present // MOMENTS
        moments = zip(range(0, present, step), self._points[::step], strict=True)
        root, least = math.sqrt, 1 / present
        worst = max([point * (1 + share * root(1 / (index + 1) - least)) for index, point in moments])
        return max(0.0, worst / self.peak - 1)

    def earliest_fit(self, head: Demand, limit: float) -> float:
        """Steps until `head` first fits under `limit`, if nobody else comes meanwhile."""
        low, high = 0, len(self._points)
        while low < high:  # the largest number of remaining ones beside which it fits
            middle = (low + high + 1) // 2
            if self._peak_after(middle, head) <= limit:
                low = middle
            else:
                high = middle - 1
        return self._ends_at(low)

    def after(self, steps: float) -> list[Demand]:
        """What is still there after so many steps, as it will be then."""
        still = self._order[: bisect_left(self._rights, -steps)]
        return [
            Demand(holder.held + holder.sequences * steps, holder.left - steps, holder.sequences)
            for holder in still
        ]

    def _ends_at(self, remaining: int) -> float:
        """When all but the `remaining` longest have ended."""
        return -self._rights[remaining] if remaining < len(self._rights) else 0.0

    def _peak_after(self, remaining: int, head: Demand) -> float:
        """The peak once only the `remaining` longest are there and the head starts then.

        Counted from now, the terms of those that run stay as they are; the head adds what it then holds.
        """
        starts_at = self._ends_at(remaining)
        ends_at = starts_at + head.left
        place = bisect_left(self._rights, -ends_at, hi=remaining)
        held = self._held[place - 1] if place else 0.0
        before = sum(self._sizes[:place])
        peak = held + before * ends_at + head.held + head.sequences * head.left
        peak = max(peak, max(self._points[:place], default=0.0))
        later = zip(self._points[place:remaining], self._rights[place:remaining], strict=True)
        grown = [point - head.sequences * (right + starts_at) for point, right in later]
        return max(peak, head.held + max(grown)) if grown else peak


def projected_peak(demands: Iterable[Demand]) -> float:
    """The formula itself, for any set. O(n log n)."""
    peak = held = 0.0
    sequences = 0
    for demand in sorted(demands, key=_LEFT, reverse=True):
        held += demand.held
        sequences += demand.sequences
        peak = max(peak, held + sequences * demand.left)
    return peak
