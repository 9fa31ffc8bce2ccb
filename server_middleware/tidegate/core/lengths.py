"""How long will this answer be: an empirical distribution per kind of request.

Law of this file: a prediction is a quantile of what was seen, never a single average. The quantile is
fixed per request, so that the errors of many requests cancel in the sum instead of adding up, and the
distribution is conditioned on what has been generated already (source: the Past-Future scheduler,
ASPLOS'25, arXiv 2507.10150). Until a kind of request has samples, its coarser kinds answer, and
until those have, a prior does.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable

WINDOW = 400  # samples remembered per kind; the oldest is forgotten
ENOUGH = 50  # from here on a kind speaks for itself
MAX_KINDS = 4096
PRIOR_CEILING = 8  # a declared maximum counts up to this many default lengths before samples exist
GROWTH = 1.25  # a lease that outlives every sample is expected to grow by this factor ...
GROWTH_TOKENS = 32.0  # ... and this many tokens more

Kinds = tuple[Hashable, ...]


class _Samples:
    """The last lengths of one kind, both in order of arrival and sorted."""

    __slots__ = ("arrival", "ordered")

    def __init__(self) -> None:
        self.arrival: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, length: float) -> None:
        self.arrival.append(length)
        insort(self.ordered, length)
        if len(self.arrival) > WINDOW:
            del self.ordered[bisect_left(self.ordered, self.arrival.popleft())]

    def quantile_above(self, seen: float, quantile: float) -> float | None:
        first = bisect_right(self.ordered, seen)
        above = len(self.ordered) - first
        return self.ordered[first + int(quantile * above)] if above else None


class LengthModel:
    """Lengths of completed answers, tokens per sequence.

    Args:
        default_tokens: mean of the prior where no maximum is declared.
    """

    def __init__(self, default_tokens: float) -> None:
        self._default = float(default_tokens)
        self._kinds: OrderedDict[Hashable, _Samples] = OrderedDict()
        self._all = _Samples()
        self.version = 0  # changes whenever a prediction might

    @property
    def is_known(self) -> bool:
        """Whether enough answers were seen for predictions to rest on data."""
        return len(self._all.ordered) >= ENOUGH

    @staticmethod
    def kinds(length_key: Hashable, declared: int | None) -> Kinds:
        """From the finest kind to the coarser one; a declared maximum shapes lengths by its magnitude."""
        magnitude = None if declared is None else int(declared).bit_length()
        return ((length_key, magnitude), (length_key,))

    def learn(self, kinds: Kinds, length: float) -> None:
        """One completed answer's length per sequence."""
        self._all.add(length)
        for kind in kinds:
            samples = self._kinds.get(kind)
            if samples is None:
                samples = self._kinds[kind] = _Samples()
                if len(self._kinds) > MAX_KINDS:
                    self._kinds.popitem(last=False)
            else:
                self._kinds.move_to_end(kind)
            samples.add(length)
        self.version += 1

    def predict(self, kinds: Kinds, declared: int | None, quantile: float, seen: float = 0.0) -> float:
        """Total length expected of an answer that has `seen` tokens already, at this quantile.

        Never below `seen + 1` and never above the declared maximum, except that an answer beyond its
        maximum is still expected to take one more token.
        """
        samples = self._samples(kinds)
        if samples is None:
            total = self._prior(declared, quantile, seen)
        else:
            found = samples.quantile_above(seen, quantile)
            total = seen * GROWTH + GROWTH_TOKENS if found is None else found
        if declared is not None:
            total = min(total, float(declared))
        return max(total, seen + 1.0)

    def _samples(self, kinds: Kinds) -> _Samples | None:
        for kind in kinds:
            samples = self._kinds.get(kind)
            if samples is not None and len(samples.ordered) >= ENOUGH:
                return samples
        return None

    def _prior(self, declared: int | None, quantile: float, seen: float) -> float:
        """A declared maximum is believed while it is modest; else lengths fall off exponentially."""
        if declared is not None:
            believed = min(float(declared), PRIOR_CEILING * self._default)
            return believed if seen < believed else seen * GROWTH + GROWTH_TOKENS
        return seen + self._default * -math.log1p(-min(quantile, 0.98))
