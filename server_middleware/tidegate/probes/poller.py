"""Asks the sources for readings, beside the requests and never in their way.

Law of this file: nothing raised by a source leaves it, one reading of a source is under way at a time,
and no two gates fall into step (each delay is jittered). The delay follows the need: short when the level
nears the watermark, long when the engine is idle, doubled with each failure in a row.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.core.reading import Reading
from tidegate.probes.protocol import Probe, ProbeError, as_readings, close

_log = logging.getLogger(__name__)

JITTER = 0.1
"""Each delay is drawn from +-10 % around its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often to ask; all in seconds.

    `interval_s` is the ordinary delay, `min_interval_s` the one near the watermark and the least
    distance between two nudged readings, `idle_interval_s` the one of an empty engine. Failures double
    the delay up to `max_backoff_s`. `near` is how far below the watermark "near" begins.
    """

    interval_s: float = 1.0
    min_interval_s: float = 0.25
    idle_interval_s: float = 2.0
    max_backoff_s: float = 10.0
    timeout_s: float = 2.0
    near: float = 0.1

    def delay_s(self, readings: Sequence[Reading], failures: int, watermark: float) -> float:
        """Return the delay before the next reading, before jitter."""
        if failures:
            return min(
                self.interval_s * 2.0 ** min(failures - 1, 16), max(self.max_backoff_s, self.interval_s)
            )
        levels = [reading.kv_usage for reading in readings if reading.kv_usage is not None]
        if any(reading.waiting for reading in readings) or max(levels, default=0.0) >= watermark - self.near:
            return min(self.min_interval_s, self.interval_s)
        if readings and all(_idle(reading) for reading in readings):
            return max(self.idle_interval_s, self.interval_s)
        return self.interval_s


class Poller:
    """Polls a probe, each of its `parts` on its own, and reports what came.

    `on_readings` gets the readings of one source, `on_failure` the instance and the error; both are
    called on the event loop, and what they raise is logged, not passed on. `watermark` tells the level
    towards which the delay shortens. May be started, stopped and started again, on any loop.
    """

    def __init__(
        self,
        probe: Probe,
        *,
        on_readings: Callable[[list[Reading]], object],
        on_failure: Callable[[str, Exception], object],
        pace: Pace | None = None,
        watermark: Callable[[], float] = lambda: 0.82,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.probe = probe
        self._on_readings = on_readings
        self._on_failure = on_failure
        self._pace = pace or Pace()
        self._watermark = watermark
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        parts: Sequence[Probe] = getattr(probe, "parts", None) or (probe,)
        self._sources = [_Source(part) for part in parts]
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether it polls on the loop that asks; without a loop it does not."""
        try:
            return self._loop is not None and self._loop is asyncio.get_running_loop()
        except RuntimeError:
            return False

    def start(self) -> None:
        """Poll on the running loop; tasks left on another loop are forgotten. Does nothing twice."""
        if self.running:
            return
        self._loop = asyncio.get_running_loop()
        for source in self._sources:
            source.restart(self._loop.create_task(self._poll(source), name=f"tidegate poll {source.name}"))

    async def stop(self) -> None:
        """End the polling and close the probe. Does nothing when it does not run here."""
        if not self.running:
            return
        self._loop = None
        tasks = [
            task for source in self._sources for task in (source.task, source.reading) if task is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            # Bounded: a source that swallows its cancellation must not keep the server from stopping.
            await asyncio.wait(tasks, timeout=self._pace.timeout_s)
        await self._quietly_close()

    def nudge(self) -> None:
        """Ask for a fresh reading now, or as soon as the least distance between two of them allows."""
        if self.running:
            for source in self._sources:
                source.nudged.set()

    async def _poll(self, source: _Source) -> None:
        readings: list[Reading] = []
        while True:
            started_at = self._clock()
            source.nudged.clear()
            try:
                readings = await self._read(source)
            except Exception as error:  # noqa: BLE001 - a source may raise anything, and none of it may leave
                source.failures += 1
                self._report_failure(source, error)
            else:
                source.failures = 0
                source.instances = tuple(reading.instance for reading in readings)
                self._call(self._on_readings, readings)
            await self._pause(source, readings, started_at)

    async def _read(self, source: _Source) -> list[Reading]:
        if source.reading is not None and not source.reading.done():
            raise ProbeError(f"{source.name}: the previous reading has not come back yet.")
        source.reading = asyncio.ensure_future(source.probe.read())
        source.reading.add_done_callback(_look_at)
        # wait, unlike wait_for, does not stay for a source that swallows its cancellation.
        done, _ = await asyncio.wait({source.reading}, timeout=self._pace.timeout_s)
        if not done:
            source.reading.cancel()
            raise ProbeError(f"{source.name}: no reading within {self._pace.timeout_s:g} s.")
        if source.reading.cancelled():
            raise ProbeError(f"{source.name}: the reading was cancelled.")
        return as_readings(source.reading.result())

    async def _pause(self, source: _Source, readings: Sequence[Reading], started_at: float) -> None:
        delay_s = self._pace.delay_s(readings, source.failures, self._watermark())
        delay_s *= self._uniform(1.0 - JITTER, 1.0 + JITTER)
        nudged = asyncio.ensure_future(source.nudged.wait())
        asleep = asyncio.ensure_future(self._sleep(delay_s))
        try:
            await asyncio.wait({nudged, asleep}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudged.cancel()
            asleep.cancel()
        least_s = self._pace.interval_s if source.failures else self._pace.min_interval_s
        early_s = min(started_at + least_s - self._clock(), delay_s)
        if not asleep.done() and early_s > 0.0:
            await self._sleep(early_s)

    def _report_failure(self, source: _Source, error: Exception) -> None:
        for instance in source.instances or (source.name,):
            self._call(self._on_failure, instance, error)

    def _call(self, listener: Callable[..., object], *arguments: object) -> None:
        try:
            listener(*arguments)
        except Exception:  # noqa: BLE001 - polling goes on whatever a listener does
            _log.exception("Tidegate: a listener of the probe failed")

    async def _quietly_close(self) -> None:
        try:
            await close(self.probe)
        except Exception as error:  # noqa: BLE001 - closing is best effort
            _log.debug("closing the probe failed: %r", error)


class _Source:
    """One independent source and where its polling stands."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.name = str(getattr(probe, "instance", "default"))
        self.instances: tuple[str, ...] = ()
        self.failures = 0
        self.task: asyncio.Task[None] | None = None
        self.reading: asyncio.Future[Reading | Sequence[Reading]] | None = None
        self.nudged = asyncio.Event()

    def restart(self, task: asyncio.Task[None]) -> None:
        """Begin anew on the loop of `task`."""
        self.task = task
        self.reading = None
        self.failures = 0
        self.nudged = asyncio.Event()


def _look_at(reading: asyncio.Future[Any]) -> None:
    """Look at the outcome, so that one that comes too late is not reported as never retrieved."""
    if not reading.cancelled():
        reading.exception()


def _idle(reading: Reading) -> bool:
    figures = (reading.kv_usage, reading.running, reading.waiting)
    return any(figure == 0 for figure in figures) and not any(figures)
