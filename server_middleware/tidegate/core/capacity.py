"""Is the capacity an engine states the one its level goes by?

Law of this file: only what the engine itself counts is compared. While the same requests run, all past their
first token, the level rises by the tokens generated over the capacity; the ratio of the two rises, summed
over many pairs of readings, is the capacity. Estimates of prompts and shared prefixes have no part in it. It
differs from the stated one where that counts something else, as blocks times their size do in layouts with
several kinds of blocks.

Where the two are 20 % or more apart, whatever the rounding to whole blocks has done, the learnt one counts,
until they are within 15 % again; what is learnt of one engine says nothing of the next, so it ends when the
counter begins anew. Downwards it is believed soon, upwards only on four times the evidence: a
capacity taken for too large makes the engine preempt, one taken for too small costs throughput.
"""

from __future__ import annotations

from tidegate.core.reading import Reading

DISPUTED, AGREED = 0.20, 0.15  # of the stated capacity; in between, what held before holds
LEAST_RISE = 0.01  # of the level in one pair
ENOUGH_RISE = 0.10  # of the level in all pairs, until something is said ...
UPWARDS = 4.0  # ... times that, until a larger capacity is believed
MEMORY = 0.98  # of the sums, per pair: some fifty pairs
USUAL_BLOCK_TOKENS = 16


class StatedCapacity:
    """What the readings of one engine say of its capacity; tokens."""

    def __init__(self) -> None:
        self._counter = 0.0  # of generated tokens, as the engine told it last
        self._begin()

    def _begin(self) -> None:
        """Nothing is known."""
        self.is_disputed = False
        self._last: Reading | None = None
        self._from: Reading | None = None  # where the present pair begins
        self._is_first = True  # of the pairs that follow each other without a break
        self._generated = self._risen = 0.0
        self._rounding = (
            0.0  # what of the rise may be rounding: a block of each sequence, once in a row of pairs
        )

    @property
    def learnt(self) -> float | None:
        """The capacity by level and output, `None` until there is enough to go by."""
        return self._generated / self._risen if self._risen >= ENOUGH_RISE else None

    def in_force(self, stated: float) -> float:
        """The capacity to go by."""
        learnt = self.learnt
        return stated if learnt is None or not self.is_disputed else learnt

    def take(self, reading: Reading, *, is_settled: bool) -> None:
        """Take in a reading; `is_settled`: only our requests run, and all of them are past their first token.

        A pair begins where the level has just moved, so that a gauge renewed less often than the counter
        does not look as if tokens took no room.
        """
        if reading.generation_tokens is not None:
            if reading.generation_tokens < self._counter:
                self._begin()  # restarted, perhaps with another capacity
            self._counter = reading.generation_tokens
        last, self._last = self._last, reading if is_settled else None
        if last is None or not is_settled or not _same_requests(last, reading):
            self._from = None
        elif self._from is None:
            self._from, self._is_first = (reading if _risen(last, reading) > 0 else None), True
        elif _risen(self._from, reading) >= LEAST_RISE:
            self._count(self._from, reading)
            self._from = reading

    def _count(self, before: Reading, after: Reading) -> None:
        generated = (after.generation_tokens or 0.0) - (before.generation_tokens or 0.0)
        self._generated = MEMORY * self._generated + generated
        self._risen = MEMORY * self._risen + _risen(before, after)
        self._rounding = MEMORY * self._rounding + (_rounding(after) if self._is_first else 0.0)
        self._is_first = False
        self._judge(after.capacity_tokens)

    def _judge(self, stated: int | None) -> None:
        learnt = self.learnt
        if learnt is None or not stated:
            self.is_disputed = False
        elif self.is_disputed:
            self.is_disputed = abs(learnt / stated - 1.0) > AGREED
        else:
            least, most = self._risen - self._rounding, self._risen + self._rounding
            is_less = self._generated <= (1.0 - DISPUTED) * stated * least
            is_more = self._generated >= (1.0 + DISPUTED) * stated * most
            self.is_disputed = is_less or (is_more and self._risen >= UPWARDS * ENOUGH_RISE)


def _risen(before: Reading, after: Reading) -> float:
    return (after.kv_usage or 0.0) - (before.kv_usage or 0.0)


def _rounding(reading: Reading) -> float:
    """A block of each sequence, as a share of the capacity."""
    blocks = (reading.running or 0) * (reading.block_tokens or USUAL_BLOCK_TOKENS)
    return blocks / reading.capacity_tokens if reading.capacity_tokens else 0.0


def _same_requests(before: Reading, after: Reading) -> bool:
    """Whether nothing started, ended, waited or lost its place in between, as far as the engine says."""
    known = (after.kv_usage, after.generation_tokens, after.prompt_tokens, after.running)
    return None not in known and not after.waiting and _standing(before) == _standing(after)


def _standing(reading: Reading) -> tuple[object, ...]:
    return (
        reading.running,
        reading.waiting,
        reading.prompt_tokens,
        reading.preemptions,
        reading.capacity_tokens,
        reading.generation_tokens is None,
    )
