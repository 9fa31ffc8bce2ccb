"""What is looked after once a second, whether or not anybody asks.

Law of this file: every second has its tick, whatever fails in one: gauges that stand still at their last
figures would look like a quiet server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.asgi.background import BackgroundLeases
from tidegate.asgi.door import Door
from tidegate.core.instance_record import HIGH_BEFORE_KNOWN
from tidegate.core.statistics import InstanceStatistics, Statistics
from tidegate.telemetry.events import AdmissionEvent, EventKind, Hook

TICK_S = 1.0
FIRST_READING_TICKS = 3  # a gate has just been made: its first reading may be on its way


class Ticker:
    """The ticks of one runtime.

    Args:
        door: whose sends may be blocked.
        background: leases whose end may have been missed.
        statistics: a snapshot of the gate.
        follow: does what other workers were told.
        record: keeps the snapshot for the operator's page.
        hook: told of every tick, and of signals that have changed.
        on_fault: called with (where, error) for a tick that failed.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        door: Door,
        background: BackgroundLeases,
        *,
        statistics: Callable[[], Statistics],
        follow: Callable[[], None],
        record: Callable[[Statistics], None],
        hook: Hook,
        on_fault: Callable[[str, Exception], None],
        clock: Callable[[], float],
    ) -> None:
        self._door = door
        self._background = background
        self._statistics = statistics
        self._follow = follow
        self._record = record
        self._hook = hook
        self._on_fault = on_fault
        self._clock = clock
        self._states: dict[str, str] = {}  # of the signals, by instance
        self._unread: dict[str, int] = {}  # ticks for which there has been no reading of an instance
        self._task: asyncio.Task[None] | None = None
        self.watermark = HIGH_BEFORE_KNOWN
        """The lowest of the high watermarks in force."""

    @property
    def is_running(self) -> bool:
        """Whether ticks come."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to tick."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tidegate-ticker")

    async def stop(self) -> None:
        """Tick no more (idempotent)."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def tick(self) -> None:
        """Look after everything once."""
        self._follow()
        self._door.look_for_blocked_sends(self._clock())
        statistics = self._statistics()
        instances = statistics.instances
        self._background.look_after(instances, self._door.streams_at)
        self.watermark = min((one.high_watermark for one in instances), default=self.watermark)
        self._tell_changes(instances)
        self._record(statistics)
        self._hook(AdmissionEvent(kind=EventKind.TICK, statistics=statistics))

    def _tell_changes(self, instances: tuple[InstanceStatistics, ...]) -> None:
        self._unread = {one.name: self._unread.get(one.name, 0) + 1 for one in instances if one.age_s is None}
        told = {one.name: one.state for one in instances}
        for name, ticks in self._unread.items():
            if ticks < FIRST_READING_TICKS:
                del told[name]
        for name, state in told.items():
            if self._states.get(name) != state:
                self._hook(AdmissionEvent(kind=EventKind.SIGNAL, instance=name, reason=state))
        self._states = told

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - the next second has a tick of its own
                self._on_fault("tick", error)
