"""What one instance's readings are worth at this moment.

Law of this file: blind is not empty. A reading has an age; what is late, frozen or missing is a state of
its own and never counts as a level of zero. States, the first that holds:

    asleep   the engine says that it sleeps
    blind    no reading, or none for `blind_after_s`
    frozen   readings come, but nothing in them moves although it should
    stalled  work is running, and no figure of the engine moves any more, nor do our streams
    stale    the newest reading is older than `stale_after_s`
    fresh    otherwise

An engine is judged stalled only where its counters have been seen to move while nothing ended: some count
a request's tokens at its end, and stand still while it runs. One long prompt moves the level, not the
counters, and is no stall either. One that says that it has nothing to do is believed for longer: the work
may be with the app in front of it, or its caller may have been forgotten. It need not have counted before:
an engine may hang before its first token. One that has hung until all its callers had left is on trial: it is
stalled again with the next lease, until something moves.

The gate closes at the high watermark and re-opens below the low one (hysteresis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from tidegate.core.options import SignalOptions
from tidegate.core.reading import Reading

FROZEN_AFTER_S = 10.0  # identical gauges and counters while our streams move
FROZEN_IDLE_AFTER_S = 2.0  # a high level that stays though nothing runs
STALLED_AFTER_S = 5.0
STALLED_IDLE_AFTER_S = 30.0  # an engine that says it has nothing to do, though leases run
ROUNDING_S = 1e-3  # by which sums of instants may differ from differences
STALE_MARGIN_PER_S, STALE_MARGIN_MOST = 0.01, 0.1


class State(str, Enum):
    """See the law of this file."""

    FRESH = "fresh"
    STALE = "stale"
    BLIND = "blind"
    FROZEN = "frozen"
    STALLED = "stalled"
    ASLEEP = "asleep"


# Asked for at every decision: before Python 3.12 members are looked up slowly.
FRESH, STALE = State.FRESH, State.STALE


@dataclass(slots=True)
class Signal:
    """The readings of one instance over time."""

    options: SignalOptions
    reading: Reading | None = None
    read_at: float = 0.0
    moved_at: float = 0.0  # when a reading last differed from the one before
    alive_at: float = 0.0  # when anything but the length of the engine's queue last moved
    is_counting: bool = False  # its counters move while requests run, not only when they end
    has_ended: bool = False  # one of our leases, since the last reading
    progress_at: float = 0.0  # when one of our own streams last moved
    leases: int = 0
    busy_since: float | None = None  # since when leases have been running without a break
    hung_since: float | None = None  # the same of the time before, where that ended in a stall
    held_at_reading: float = 0.0
    previous_waiting: int | None = None
    fresh_until: float = -math.inf  # until then nothing that can happen makes it anything but fresh
    is_closed: bool = False  # hysteresis of the watermark
    was_blind_until: float | None = None  # end of the last blind spell

    def elapsed_s(self, now: float) -> float:
        """Seconds since the last reading, 0 before the first."""
        return 0.0 if self.reading is None else max(0.0, now - self.read_at)

    def take(self, reading: Reading, held: float, now: float) -> None:
        """A new reading, at a moment at which our leases hold `held` tokens."""
        before = self.reading
        if before is None or now - self.read_at >= self.options.blind_after_s:
            self.was_blind_until = now
        if before is None or before != reading:
            self.moved_at = now
        if before is None or _signs_of_life(before) != _signs_of_life(reading):
            self.alive_at = now
        if before is not None and not self.has_ended and reading.running == before.running:
            self.is_counting |= self.busy_since is not None and _generated(reading) > _generated(before)
        self.has_ended = False
        self.previous_waiting = None if before is None else _waiting(before)
        self.reading, self.read_at, self.held_at_reading = reading, now, held
        surely_s = min(self.options.stale_after_s, self.options.blind_after_s)
        is_plain = not reading.asleep and self.hung_since is None and not self._is_stalled()
        certain_until = min(now + surely_s, self.moved_at + FROZEN_IDLE_AFTER_S) - ROUNDING_S
        self.fresh_until = certain_until if is_plain else -math.inf

    def busy(self, leases: int, now: float, *, has_completed: bool = False) -> None:
        """How many leases run; told whenever that changes, and whether the one that ended had its answer."""
        if leases < self.leases:
            self.has_ended = True
        self.leases = leases
        if leases == 0:
            if has_completed or not self._is_stalled():
                self.hung_since = None
            elif self.hung_since is None:
                self.hung_since = self.busy_since
            self.busy_since = None
        elif self.busy_since is None:
            self.busy_since = now

    def age_s(self, now: float) -> float | None:
        """Seconds since the newest reading, `None` before the first."""
        return None if self.reading is None else max(0.0, now - self.read_at)

    def state(self, now: float) -> State:
        """The first state that holds."""
        if now < self.fresh_until:
            return FRESH
        reading, options = self.reading, self.options
        if reading is None:
            return State.BLIND
        if reading.asleep:
            return State.ASLEEP
        age_s = now - self.read_at
        if age_s >= options.blind_after_s:
            return State.BLIND
        if now - self.moved_at >= FROZEN_IDLE_AFTER_S and self._is_frozen(reading, now):
            return State.FROZEN
        if self._is_stalled():
            return State.STALLED
        return STALE if age_s > options.stale_after_s else FRESH

    def extra_margin(self, now: float) -> float:
        """A stale reading widens the safety margin with its age, up to a tenth of the capacity."""
        late_s = 0.0 if self.reading is None else now - self.read_at - self.options.stale_after_s
        return 0.0 if late_s <= 0 else min(STALE_MARGIN_MOST, STALE_MARGIN_PER_S * late_s)

    def level(self, held: float, capacity: float | None) -> float | None:
        """The measured level, carried forward by what our own leases took and gave back since."""
        reading = self.reading
        if reading is None or reading.kv_usage is None:
            return None
        level = reading.kv_usage
        if capacity:
            level += (held - self.held_at_reading) / capacity
        return level if level > 0.0 else 0.0

    def is_above(self, level: float | None, high: float, low: float) -> bool:
        """Hysteresis: closed from `high` until the level is below `low`."""
        if level is None:
            self.is_closed = False
        elif level >= high:
            self.is_closed = True
        elif level < low:
            self.is_closed = False
        return self.is_closed

    def is_queueing(self, most: int) -> bool:
        """The engine holds a queue of its own beyond `most`, and it is not getting shorter."""
        waiting = None if self.reading is None else _waiting(self.reading)
        if waiting is None or waiting <= most:
            return False
        return self.previous_waiting is None or waiting >= self.previous_waiting

    def changes_at(self, now: float) -> float | None:
        """When the mere passing of time next makes this signal something else."""
        if self.reading is None or self.reading.asleep:
            return None
        first: float | None = None
        for instant in (
            self.read_at + self.options.blind_after_s,
            self.moved_at + FROZEN_IDLE_AFTER_S,
            self.moved_at + FROZEN_AFTER_S,
        ):
            if instant > now and (first is None or instant < first):
                first = instant
        return first

    def _is_frozen(self, reading: Reading, now: float) -> bool:
        """Of one that has not moved for `FROZEN_IDLE_AFTER_S` at least."""
        if reading.kv_usage is None:
            return False
        if self.busy_since is None:
            return self.is_closed and not reading.running
        still_s, busy_s = now - self.moved_at, now - self.busy_since
        return min(still_s, busy_s) >= FROZEN_AFTER_S and now - self.progress_at < STALLED_AFTER_S

    def _is_stalled(self) -> bool:
        if self.busy_since is None or self.reading is None:
            return False
        since = self.busy_since if self.hung_since is None else self.hung_since
        if self.read_at - since < STALLED_AFTER_S:
            return False
        is_idle = _says_idle(self.reading)
        if not (self.is_counting or (is_idle and self.reading.generation_tokens is not None)):
            return False
        after_s = STALLED_IDLE_AFTER_S if is_idle else STALLED_AFTER_S
        return self.read_at - max(self.alive_at, self.progress_at, since) >= after_s


def _waiting(reading: Reading) -> int | None:
    """Requests the engine cannot start for lack of room; other reasons do not close the gate."""
    return reading.waiting if reading.waiting_for_capacity is None else reading.waiting_for_capacity


def _says_idle(reading: Reading) -> bool:
    return reading.running == 0 and not reading.waiting


def _generated(reading: Reading) -> float:
    return reading.generation_tokens or 0.0


def _signs_of_life(reading: Reading) -> tuple[float | None, ...]:
    counters = reading.generation_tokens, reading.prompt_tokens, reading.preemptions
    return (*counters, reading.kv_usage, reading.running)
