"""The policies compared: one waiting room, different tests of whether the next request may start.

Law of this file: each baseline is the strongest simple form of its idea, and only its test differs. The
room is first come, first served within strict priority classes, each bounded in seats. Nobody's patience ends
in it: the heads that expire would be the large ones, and a policy that drops large requests looks fast. The
product's own core is driven by `benchmarks.policies_gate`.

The peak test is that of the Past-Future scheduler (arXiv 2507.10150): with sequences sorted by what is
left, longest first, the future peak is the maximum over k of (held by the first k) + k * left of the k-th.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable

from benchmarks.policies_engine import EventEngine
from benchmarks.policies_world import Effects, Job
from tidegate.core.reading import Reading

Advice = Callable[[Job, float], float]
"""What a refused client is told, or does when told nothing: (job, uniform) -> seconds."""


def constant_second(_: Job, __: float) -> float:
    """Retry-After: 1 for everybody."""
    return 1.0


def full_jitter(job: Job, uniform: float) -> float:
    """No advice: exponential back-off with full jitter, half a second doubling up to sixty."""
    return float(uniform * min(60.0, 0.5 * 2.0**job.attempts))


class Room:
    """The base of all baselines; as it stands it passes everything straight on (policy "none")."""

    def __init__(
        self,
        *,
        seats: int = 256,
        max_wait_s: float = math.inf,
        advice: Advice = constant_second,
        classes: tuple[str, ...] = ("vip", "standard"),
        seed: int = 0,
    ) -> None:
        self.seats = seats
        self.max_wait_s = max_wait_s
        self.advice = advice
        self.lines: dict[str, deque[tuple[float, Job]]] = {name: deque() for name in classes}
        self.queued = 0
        self.leases: dict[int, Job] = {}
        self.reading: Reading | None = None
        self._random = random.Random(seed)

    def may_start(self, job: Job, now: float) -> bool:
        """The test; everything else is the same for all."""
        return True

    def started(self, job: Job, now: float) -> None:
        """A hook for accounts beyond the set of leases."""

    def offer(self, job: Job, now: float) -> Effects:
        effects = self._pump(now)
        if not self.queued and self.may_start(job, now):
            self._start(job, now, effects)
        elif len(self.lines[job.priority_class]) >= self.seats:
            effects.refusals.append((job.id, self.advice(job, self._random.random())))
        else:
            self.lines[job.priority_class].append((now + self.max_wait_s, job))
            self.queued += 1
            self._pump(now, effects)
        return effects

    def finish(self, job: Job, now: float) -> Effects:
        self.leases.pop(job.id, None)
        return self._pump(now)

    def observe(self, reading: Reading, now: float) -> Effects:
        self.reading = reading
        return self._pump(now)

    def probe_failed(self, now: float) -> Effects:
        return self._pump(now)

    def first_token(self, ticket: int, now: float) -> None:
        """No baseline counts tokens."""

    def sweep(self, engine: EventEngine, now: float) -> Effects:
        return Effects()

    def wake(self, now: float) -> Effects:
        return self._pump(now)

    def _pump(self, now: float, effects: Effects | None = None) -> Effects:
        effects = effects or Effects()
        for line in self.lines.values():
            while line and line[0][0] <= now:
                job = line.popleft()[1]
                effects.refusals.append((job.id, self.advice(job, self._random.random())))
                self.queued -= 1
            while line and self.may_start(line[0][1], now):
                self._start(line.popleft()[1], now, effects)
                self.queued -= 1
            if line:
                break
        return effects

    def _start(self, job: Job, now: float, effects: Effects) -> None:
        self.leases[job.id] = job
        self.started(job, now)
        effects.starts.append(job.id)


class Cap(Room):
    """At most `limit` requests at once."""

    def __init__(self, limit: int, **room: object) -> None:
        super().__init__(**room)  # type: ignore[arg-type]
        self.limit = limit

    def may_start(self, job: Job, now: float) -> bool:
        return len(self.leases) < self.limit


class Watermark(Room):
    """While the last sample of the gauge lies below the mark."""

    def __init__(self, mark: float = 0.82, **room: object) -> None:
        super().__init__(**room)  # type: ignore[arg-type]
        self.mark = mark

    def may_start(self, job: Job, now: float) -> bool:
        return self.reading is None or (self.reading.kv_usage or 0.0) < self.mark


def projected_peak(sequences: Iterable[tuple[float, float, str | None, float]], block_tokens: int) -> float:
    """Future peak in tokens of (left, held, prefix, tokens of it), half a block of rounding for each.

    A prefix counts once, for as long as somebody holds it.
    """
    peak = held = 0.0
    prefixes: set[str | None] = {None}
    for count, (left, has, prefix, shared) in enumerate(sorted(sequences, key=_by_left, reverse=True), 1):
        held += has + block_tokens / 2
        if prefix in prefixes:
            held -= shared
        prefixes.add(prefix)
        peak = max(peak, held + count * left)
    return peak


def _by_left(sequence: tuple[float, float, str | None, float]) -> float:
    return sequence[0]


class _Projection(Room):
    """Admits while the projected peak fits; what is left of an answer is the subclass's to say."""

    def __init__(self, engine: EventEngine, **room: object) -> None:
        super().__init__(**room)  # type: ignore[arg-type]
        self.engine = engine
        options = engine.options
        self.capacity = engine.usable_blocks * options.block_tokens

    def total_output(self, job: Job) -> float:
        raise NotImplementedError

    def may_start(self, job: Job, now: float) -> bool:
        if len(self.leases) >= self.engine.options.max_sequences:
            return False
        seen = dict(self.engine.outputs())
        block = self.engine.options.block_tokens
        sequences = [self._sequence(lease, seen.get(lease.id, 0), block) for lease in self.leases.values()]
        sequences.append(self._sequence(job, 0, block))
        return projected_peak(sequences, block) <= self.capacity

    def _sequence(self, job: Job, seen: int, block: int) -> tuple[float, float, str | None, float]:
        return self.total_output(job) - seen, job.prompt + seen, job.prefix, job.prefix_blocks * block


class Reservation(_Projection):
    """Reserves the declared maximum of every answer (with exact prompts: its best case)."""

    def total_output(self, job: Job) -> float:
        limit = self.engine.options.max_model_tokens - job.prompt
        return limit if job.max_tokens is None else min(job.max_tokens, limit)


class Oracle(_Projection):
    """Knows the length of every prompt and every answer."""

    def total_output(self, job: Job) -> float:
        return job.output
