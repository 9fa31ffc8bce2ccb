"""How long will this answer be: an empirical distribution per kind of request.

Law of this file: a prediction is a quantile of what was seen, never a single average. The quantile is
fixed per request, so that the errors of many requests cancel in the sum instead of adding up, and the
distribution is conditioned on what has been generated already (source: the Past-Future scheduler,
ASPLOS'25, arXiv 2507.10150). Until a kind of request has samples, its coarser kinds answer, and
until those have, a prior does.

Answers still running, and those cut at their declared maximum, count too, as "at least so long"
(right-censored). Without the former the short answers of a burst, which end first, would stand for all of
it, and the gate would fill up just before the long ones show; by the latter, callers that always use their
maximum are expected to use it. The estimator is Kaplan and Meier's, in Efron's form: walking upwards, the
weight of every censored answer is shared out among all longer ones. A kind's window is over starts, not
ends, for the same reason.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, repeat
from typing import Protocol

WINDOW = 800  # starts remembered per kind; what began before is forgotten
ENOUGH = 16  # completed answers from which on a kind speaks for itself
ENOUGH_TO_TRUST = 50  # ... and from which on the watermark may be narrow
REBUILD_SHARE = 0.08  # of the samples may change before the weights are computed anew
MAX_KINDS = 4096
PRIOR_CEILING = 8  # a declared maximum counts up to this many default lengths before samples exist
PRIOR_TAIL = 0.98  # the exponential prior is cut here
GROWTH = 1.25  # an answer that outlives every sample is expected to grow by this factor ...
GROWTH_TOKENS = 32.0  # ... and this many tokens more

Kinds = tuple[Hashable, Hashable]


class Growing(Protocol):
    """An answer under way: tokens `seen` over all the sequences that were `asked` for."""

    seen: float

    @property
    def asked(self) -> int: ...


@dataclass(slots=True)
class _Samples:
    """One kind: completed lengths, answers under way, and the weights over the former.

    While all answers of a kind are of one finer kind, both share one of these.
    """

    started: int = 0
    alive: dict[int, tuple[int, Growing]] = field(default_factory=dict)
    ordered: list[float] = field(default_factory=list)
    cut: list[float] = field(default_factory=list)  # ended by their maximum, sorted
    _ended: dict[int, tuple[float, bool]] = field(default_factory=dict)  # by start, within the window
    _changes: int = 1
    _lengths: list[float] = field(default_factory=list)  # as of the last rebuild
    _cumulative: Sequence[float] = ()  # mass at or below each of them; 1 with the rest
    is_shared: bool = False
    parted: _Samples | None = None  # the copy of the coarser kind, once it has others too

    def part(self) -> _Samples:
        """From now on the coarser kind has samples of its own; it begins with these."""
        self.is_shared = False
        self.parted = _Samples(
            self.started, dict(self.alive), list(self.ordered), list(self.cut), dict(self._ended)
        )
        return self.parted

    def begin(self, ticket: int, answer: Growing) -> None:
        start = self.started = self.started + 1
        self.alive[ticket] = (start, answer)
        self._changes += 1
        forgotten = self._ended.pop(start - WINDOW, None)
        if forgotten is not None:
            length, is_cut = forgotten
            lengths = self.cut if is_cut else self.ordered
            del lengths[bisect_left(lengths, length)]

    def end(self, ticket: int, length: float | None, is_cut: bool) -> None:
        start, _ = self.alive.pop(ticket)
        self._changes += 1
        if length is not None and start > self.started - WINDOW:
            self._ended[start] = (length, is_cut)
            insort(self.cut if is_cut else self.ordered, length)

    def quantile_above(self, seen: float, quantile: float) -> float | None:
        """The conditional quantile, `None` where it lies beyond every completed answer."""
        if self._changes > REBUILD_SHARE * (len(self._lengths) + len(self.alive)):
            self._rebuild()
        lengths = self._lengths
        first = bisect_right(lengths, seen)
        below = self._cumulative[first - 1] if first else 0.0
        place = bisect_left(self._cumulative, below + quantile * (1.0 - below), first)
        return lengths[place] if place < len(lengths) else None

    @property
    def longest(self) -> float:
        return self.ordered[-1] if self.ordered else 0.0

    @property
    def is_enough(self) -> bool:
        return len(self.ordered) + len(self.cut) >= ENOUGH

    def _rebuild(self) -> None:
        self._changes = 0
        under_way = [answer.seen / answer.asked for _, answer in self.alive.values()]
        censored = sorted([*under_way, *self.cut])
        lengths = self._lengths = list(self.ordered)
        count = len(lengths) + len(censored)
        weight = 1.0 / count if count else 0.0
        weights: list[float] = []
        for position, least in enumerate(censored):
            place = bisect_right(lengths, least, len(weights))
            if place > len(weights):
                weights += repeat(weight, place - len(weights))
            if place == len(lengths):
                break
            weight += weight / (count - place - position - 1)
        if not weights:  # whatever is censored is shorter than all the others, or longer
            self._cumulative = _even(weight, len(lengths), is_whole=not censored)
            return
        weights += repeat(weight, len(lengths) - len(weights))
        self._cumulative = list(accumulate(weights))


@lru_cache(maxsize=32)
def _even(weight: float, count: int, *, is_whole: bool) -> tuple[float, ...]:
    """Running sums of equal weights, 1 at the end where they are the whole mass; full windows share these."""
    sums = accumulate(repeat(weight, count))
    return (*list(sums)[:-1], 1.0) if is_whole and count else tuple(sums)


Books = tuple[_Samples, ...]
"""Where an answer's length is written down: the samples of its kinds, the finest first."""


class LengthModel:
    """Lengths of answers, tokens per sequence.

    Args:
        default_tokens: mean of the prior where no maximum is declared.
    """

    def __init__(self, default_tokens: float) -> None:
        self._default = float(default_tokens)
        self._kinds: OrderedDict[Hashable, _Samples] = OrderedDict()
        self._completed = 0

    @property
    def is_known(self) -> bool:
        """Whether enough answers were seen for predictions to rest on data."""
        return self._completed >= ENOUGH_TO_TRUST

    @staticmethod
    def kinds(length_key: Hashable, declared: int | None) -> Kinds:
        """From the finest kind to the coarser one; a declared maximum shapes lengths by its magnitude."""
        magnitude = None if declared is None else int(declared).bit_length()
        return ((length_key, magnitude), (length_key,))

    def begin(self, kinds: Kinds, ticket: int, answer: Growing) -> Books:
        """An answer has begun; its growth is read from `answer`. `end` wants what is returned here."""
        finest, coarser = kinds
        fine, coarse = self._kinds.get(finest), self._kinds.get(coarser)
        if fine is None or coarse is None:
            fine, coarse = self._new(finest, coarser, fine)
        else:
            self._kinds.move_to_end(finest)
            self._kinds.move_to_end(coarser)
        fine.begin(ticket, answer)
        if coarse is fine:
            return (fine,)
        coarse.begin(ticket, answer)
        return (fine, coarse)

    def _new(self, finest: Hashable, coarser: Hashable, fine: _Samples | None) -> tuple[_Samples, _Samples]:
        """The samples of both kinds, one of which at least is new."""
        is_first = fine is None
        fine = self._keep(finest, fine or _Samples())
        coarse = self._kinds.get(coarser)
        if coarse is None:
            coarse, fine.is_shared = (fine, True) if is_first else (_Samples(), False)
        elif coarse.is_shared:
            coarse = coarse.part()
        return fine, self._keep(coarser, coarse)

    def _keep(self, kind: Hashable, samples: _Samples) -> _Samples:
        self._kinds[kind] = samples
        self._kinds.move_to_end(kind)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return samples

    def end(self, books: Books, ticket: int, length: float | None, is_cut: bool = False) -> None:
        """An answer has ended at this length per sequence, or (`None`) without telling anything.

        `is_cut`: it was ended by its declared maximum and would have gone on.
        """
        if length is not None:
            self._completed += 1
        for samples in books:
            samples.end(ticket, length, is_cut)
        if len(books) == 1 and books[0].parted is not None:  # parted since it began
            books[0].parted.end(ticket, length, is_cut)

    def predict(self, kinds: Kinds, declared: int | None, quantile: float, seen: float = 0.0) -> float:
        """Total length expected of an answer that has `seen` tokens already, at this quantile.

        Never below `seen + 1` and never above the declared maximum, except that an answer beyond its
        maximum is still expected to take one more token.
        """
        samples = self._samples(kinds)
        total = None if samples is None else samples.quantile_above(seen, quantile)
        if total is None:
            longest = 0.0 if samples is None else samples.longest
            total = max(self._prior(declared, quantile, seen), longest * GROWTH)
        if declared is not None and declared < total:
            total = float(declared)
        least = seen + 1.0
        return total if total > least else least

    def _samples(self, kinds: Kinds) -> _Samples | None:
        finest, coarser = kinds
        samples = self._kinds.get(finest)
        if samples is not None and samples.is_enough:
            return samples
        samples = self._kinds.get(coarser)
        if samples is None or not samples.is_enough:
            return None
        if samples.is_shared:  # by another finer kind, whose weights are its own
            samples = self._kinds[coarser] = samples.part()
        return samples

    def _prior(self, declared: int | None, quantile: float, seen: float) -> float:
        """A declared maximum is believed while it is modest; else lengths fall off exponentially."""
        if declared is None:
            return seen + self._default * -math.log1p(-min(quantile, PRIOR_TAIL))
        believed = min(float(declared), PRIOR_CEILING * self._default)
        return believed if seen < believed else seen * GROWTH + GROWTH_TOKENS
