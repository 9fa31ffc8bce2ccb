"""How many calls one process keeps under way at one origin, learnt from what the server bears.

Law: pure. Additive increase, multiplicative decrease: about one more place for every window of calls let in,
a share fewer at each refusal, at most once per pause. Source: D. Chiu and R. Jain, "Analysis of the Increase
and Decrease Algorithms for Congestion Avoidance", 1989.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveConcurrency:
    """Bounds of the learnt limit. A call counts from its attempt to the end of its answer's body.

    Attributes:
        first: the limit at first.
        least, most: its bounds.
        keep: what a refusal leaves of it, between 0 and 1.

    Raises (at construction):
        ValueError: bounds out of order, or a share that is none.
    """

    first: int = 16
    least: int = 1
    most: int = 256
    keep: float = 0.75

    def __post_init__(self) -> None:
        bounds = (self.least, self.first, self.most)
        if any(type(bound) is not int for bound in bounds) or not 1 <= self.least <= self.first <= self.most:
            told = f"AdaptiveConcurrency least, first, most are {bounds!r}"
            raise ValueError(f"{told}: give whole numbers in order, from 1 on.")
        if not 0 < self.keep < 1:
            raise ValueError(f"AdaptiveConcurrency.keep is {self.keep!r}: give a share between 0 and 1.")


class Limit:
    """The learnt limit, and how many calls it holds."""

    def __init__(self, bounds: AdaptiveConcurrency) -> None:
        self._bounds = bounds
        self.places = float(bounds.first)
        self.under_way = 0

    def has_room(self) -> bool:
        """Whether one more call may begin."""
        return self.under_way < int(self.places)

    def let_in(self) -> None:
        """A call was not refused: one more place per window, and only while the places are used."""
        if 2 * self.under_way >= self.places:
            self.places = min(float(self._bounds.most), self.places + 1.0 / self.places)

    def refused(self) -> None:
        """The first refusal of a pause."""
        self.places = max(float(self._bounds.least), self.places * self._bounds.keep)
