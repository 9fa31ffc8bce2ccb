"""Is the capacity an engine states the one its level goes by?

Law of this file: only what the engine itself counts is compared. While the same requests run, all past their
first token, the level rises by the tokens generated over the capacity; the ratio of the two rises, summed
over many pairs of readings, is the capacity. Estimates of prompts and shared prefixes have no part in it. It
differs from the stated one where that counts something else, as blocks times their size do in layouts with
several kinds of blocks.

Where the two are 20 % or more apart the learnt one counts, until they are within 15 % again. Downwards it is
believed at once, upwards only on four times the evidence: a capacity taken for too large makes the engine
preempt, one taken for too small costs throughput.
"""

from __future__ import annotations

from tidegate.core.reading import Reading

DISPUTED, AGREED = 0.20, 0.15  # of the stated capacity; in between, what held before holds
LEAST_RISE = 0.01  # of the level in one pair: less is mostly the rounding to whole blocks
ENOUGH_RISE = 0.10  # of the level in all pairs ...
ENOUGH_PAIRS = 4.0  # ... and so many, until something is said
UPWARDS = 4.0  # times both
MEMORY = 0.98  # of the sums, per pair: some fifty pairs


class StatedCapacity:
    """What the readings of one engine say of its capacity; tokens."""

    def __init__(self) -> None:
        self.is_disputed = False
        self._last: Reading | None = None
        self._from: Reading | None = None  # where the present pair begins
        self._generated = self._risen = self._pairs = 0.0

    @property
    def learnt(self) -> float | None:
        """The capacity by level and output, `None` until there is enough to go by."""
        return self._generated / self._risen if self._has_seen(1.0) else None

    def in_force(self, stated: float) -> float:
        """The capacity to go by."""
        learnt = self.learnt
        return stated if learnt is None or not self.is_disputed else learnt

    def take(self, reading: Reading, *, is_settled: bool) -> None:
        """Take in a reading; `is_settled`: only our requests run, and all of them are past their first token.

        A pair begins where the level has just moved, so that a gauge renewed less often than the counter
        does not look as if tokens took no room.
        """
        last, self._last = self._last, reading if is_settled else None
        if last is None or not is_settled or not _same_requests(last, reading):
            self._from = None
        elif self._from is None:
            self._from = reading if _risen(last, reading) > 0 else None
        elif _risen(self._from, reading) >= LEAST_RISE:
            self._count(self._from, reading)
            self._from = reading

    def _count(self, before: Reading, after: Reading) -> None:
        generated = (after.generation_tokens or 0.0) - (before.generation_tokens or 0.0)
        self._generated = MEMORY * self._generated + generated
        self._risen = MEMORY * self._risen + _risen(before, after)
        self._pairs = MEMORY * self._pairs + 1.0
        learnt, stated = self.learnt, after.capacity_tokens
        if learnt is None or not stated:
            self.is_disputed = False
            return
        apart = learnt / stated - 1.0
        limit = AGREED if self.is_disputed else DISPUTED
        self.is_disputed = apart <= -limit or (apart >= limit and self._has_seen(UPWARDS))

    def _has_seen(self, times: float) -> bool:
        return self._risen >= times * ENOUGH_RISE and self._pairs >= times * ENOUGH_PAIRS


def _risen(before: Reading, after: Reading) -> float:
    return (after.kv_usage or 0.0) - (before.kv_usage or 0.0)


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
