"""The discrete-event world of the policy benchmark: clients, a front (the policy), and one engine.

Law of this file: one heap of events on a fake clock, seeded, nothing decided here. A client does what it
is told: it comes back after exactly the time of its refusal, or gives up after its last try.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import Protocol

from benchmarks.policies_engine import EventEngine
from tidegate.core.reading import Reading

_ARRIVE, _WAKE, _PROBE, _SWEEP, _FIRST, _FINISH = range(6)


@dataclass(slots=True)
class Job:
    """One request and, afterwards, what became of it. Tokens and seconds."""

    id: int
    arrives_s: float
    prompt: int
    output: int
    prompt_estimate: float
    max_tokens: int | None = None
    tenant: str = "t0"
    priority_class: str = "standard"
    prefix: str | None = None
    prefix_blocks: int = 0
    max_attempts: int | None = 1  # None: obeys for ever
    attempts: int = 0
    offered_s: float = 0.0  # its latest try
    granted_s: float | None = None
    finished_s: float | None = None
    lost: bool = False


@dataclass(slots=True)
class Effects:
    """What a front wants: jobs to start, jobs to refuse and the wait each is told, its next wake-up."""

    starts: list[int] = field(default_factory=list)
    refusals: list[tuple[int, float | None]] = field(default_factory=list)
    wake_at: float | None = None
    wants_reading: bool = False


class Front(Protocol):
    """A policy before the engine."""

    def offer(self, job: Job, now: float) -> Effects: ...
    def finish(self, job: Job, now: float) -> Effects: ...
    def observe(self, reading: Reading, now: float) -> Effects: ...
    def probe_failed(self, now: float) -> Effects: ...
    def first_token(self, ticket: int, now: float) -> None: ...
    def sweep(self, engine: EventEngine, now: float) -> Effects: ...
    def wake(self, now: float) -> Effects: ...


@dataclass(kw_only=True)
class World:
    """Runs `jobs` through `front` and `engine` until all are answered or lost, or `until_s` has passed."""

    engine: EventEngine
    front: Front
    jobs: list[Job]
    probe_s: float = 1.0
    sweep_s: float = 0.5  # how often counted tokens reach the front; 0: never (answers are not streamed)
    probe_lost: tuple[float, float] = (0.0, 0.0)
    until_s: float = float("inf")
    marks: dict[float, dict[str, float]] = field(default_factory=dict)  # instants at which to note the totals
    speed_changes: list[tuple[float, float]] = field(default_factory=list)  # (instant, new step_s)
    now: float = 0.0
    refused: int = 0

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, int, int]] = []
        self._sequence = 0
        self._wake_at: float | None = None
        self._extra_probe = False
        self._open = len(self.jobs)
        self._by_id = {job.id: job for job in self.jobs}
        for job in self.jobs:
            self._schedule(job.arrives_s, _ARRIVE, job.id)
        self._schedule(0.0, _PROBE)
        if self.sweep_s:
            self._schedule(self.sweep_s, _SWEEP)
        self._marks = sorted(self.marks)

    def run(self) -> None:
        """Until the work or the time is over."""
        while self._events and self._open and self.now < self.until_s:
            at = self._events[0][0]
            if self.engine.has_work and self.engine.now_s < at:
                finished = self.engine.advance(at)
                for first_s, ticket in self.engine.first_tokens:
                    self._schedule(first_s, _FIRST, ticket)
                self.engine.first_tokens.clear()
                for ticket in finished:
                    self._schedule(self.engine.now_s, _FINISH, ticket)
                continue
            self._handle(*heapq.heappop(self._events))

    def _schedule(self, at: float, kind: int, payload: int = 0) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, kind, payload))

    def _handle(self, at: float, _: int, kind: int, payload: int) -> None:
        self.now = max(self.now, at)
        while self._marks and self._marks[0] <= self.now:
            self.marks[self._marks.pop(0)].update(
                generated=self.engine.generated, preemptions=self.engine.preemptions, at=self.now
            )
        while self.speed_changes and self.speed_changes[0][0] <= self.now:
            step_s = self.speed_changes.pop(0)[1]
            self.engine.options = replace(self.engine.options, step_s=step_s)
        if kind == _ARRIVE:
            job = self._by_id[payload]
            job.attempts += 1
            job.offered_s = self.now
            self._act(self.front.offer(job, self.now))
        elif kind == _FINISH:
            job = self._by_id[payload]
            job.finished_s = self.now
            self._open -= 1
            self._act(self.front.finish(job, self.now))
        elif kind == _FIRST:
            if self.sweep_s:
                self.front.first_token(payload, self.now)
        elif kind == _PROBE:
            if payload:
                self._extra_probe = False
            else:
                self._schedule(self.now + self.probe_s, _PROBE)
            self._probe()
        elif kind == _SWEEP:
            self._act(self.front.sweep(self.engine, self.now))
            self._schedule(self.now + self.sweep_s, _SWEEP)
        elif self._wake_at is not None and self._wake_at <= self.now:
            self._wake_at = None
            self._act(self.front.wake(self.now))

    def _probe(self) -> None:
        lost_from, lost_until = self.probe_lost
        if lost_from <= self.now < lost_until:
            self._act(self.front.probe_failed(self.now))
        else:
            self._act(self.front.observe(self.engine.reading(), self.now))

    def _act(self, effects: Effects) -> None:
        for ticket in effects.starts:
            job = self._by_id[ticket]
            job.granted_s = self.now
            if not self.engine.has_work:
                self.engine.now_s = max(self.engine.now_s, self.now)
            self.engine.submit(job.id, job.prompt, job.output, job.prefix, job.prefix_blocks)
        for ticket, wait_s in effects.refusals:
            self._refuse(self._by_id[ticket], wait_s)
        if effects.wake_at is not None and (self._wake_at is None or effects.wake_at < self._wake_at):
            self._wake_at = max(effects.wake_at, self.now)
            self._schedule(self._wake_at, _WAKE)
        if effects.wants_reading and not self._extra_probe:
            self._extra_probe = True
            self._schedule(self.now + 0.005, _PROBE, 1)  # a scrape on loopback takes some milliseconds

    def _refuse(self, job: Job, wait_s: float | None) -> None:
        self.refused += 1
        if wait_s is None or (job.max_attempts is not None and job.attempts >= job.max_attempts):
            job.lost = True
            self._open -= 1
        else:
            self._schedule(self.now + wait_s, _ARRIVE, job.id)
