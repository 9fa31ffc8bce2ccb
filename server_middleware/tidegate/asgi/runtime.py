"""Everything that one event loop needs to admit requests, put together from the settings.

Law of this file: it assembles, starts and stops; it decides nothing. A runtime belongs to one running
loop; a second loop (tests, `asyncio.run` twice) gets a runtime of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate import processes
from tidegate.asgi.ask import AskBuilder
from tidegate.asgi.background import BackgroundLeases
from tidegate.asgi.callers import Callers
from tidegate.asgi.classify import RouteTable
from tidegate.asgi.cors import Cors
from tidegate.asgi.door import Door
from tidegate.asgi.drain import ShutdownListener
from tidegate.asgi.faults import FaultPolicy
from tidegate.asgi.headers import preference_applied
from tidegate.asgi.keys import CachedKeys, KeyLookup
from tidegate.asgi.manners import Manners
from tidegate.asgi.operator import Operator
from tidegate.asgi.replies import Replier
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.ticker import Ticker
from tidegate.asgi.types import App, HeaderList, Headers, Scope
from tidegate.asgi.waiting import WaitingRoom
from tidegate.console import Console, access
from tidegate.console.control import Control
from tidegate.core.decisions import Uniform
from tidegate.core.reading import Reading
from tidegate.core.statistics import Statistics
from tidegate.orders import Orders
from tidegate.probes import Probe, as_probe
from tidegate.probes.auto import find_probe
from tidegate.probes.function import ProbeLike
from tidegate.probes.poller import Poller
from tidegate.settings import Mode, Settings
from tidegate.settings_errors import InvalidSettings
from tidegate.telemetry.by_tenant import RefusedByTenant
from tidegate.telemetry.events import AdmissionEvent, EventKind, Hook, Hooks
from tidegate.telemetry.log import LogHook, be_heard

logger = logging.getLogger("tidegate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the user may bring along instead of the defaults."""

    probe: ProbeLike | None = None
    keys: KeyLookup | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    uniform: Uniform = random.random
    hooks: Sequence[Hook] = ()
    load: Callable[[], Settings] | None = None
    """Reads the settings once more; `None` where the program gave them."""


class Runtime:
    """The assembled gate of one event loop."""

    def __init__(self, app: App, settings: Settings, parts: Parts, host_app: object = None) -> None:
        be_heard()
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.mode: Mode = settings.mode
        self._parts = parts
        self._host_app = host_app
        self._refused = RefusedByTenant(parts.clock)
        self.hooks = Hooks((self._refused, *_hooks(settings, parts)))
        self.room = WaitingRoom(
            settings.gate_options(),
            clock=parts.clock,
            uniform=parts.uniform,
            want_reading=self._nudge,
            on_cancel=self._cancel,
            on_fault=self._record,
        )
        self.faults = FaultPolicy(
            settings.on_internal_error,
            settings.internal_error_concurrency,
            clock=parts.clock,
            hook=self.hooks,
            on_recover=self.room.reset,
        )
        self.routes = RouteTable(settings.guard)
        self.background = BackgroundLeases(parts.clock, self._let_go)
        keys = None if parts.keys is None else CachedKeys(parts.keys, clock=parts.clock)
        self._callers = Callers(settings, keys)
        self._builder = AskBuilder(settings, parts.clock, self.room, self._callers)
        self.door = Door(app, self._surroundings(), self._manners(), self.faults)
        self.console = Console(settings.console, self, parts.clock, parts.wall_clock, self._refused.lately)
        self._operator = Operator(self, Orders(settings.console.path), parts.load)
        self.control = Control(settings.console, self._operator.switch, self._operator.reload)
        self.ticker = Ticker(
            self.door,
            self.background,
            statistics=self.statistics,
            follow=self._operator.follow,
            record=self.console.record,
            hook=self.hooks,
            on_fault=self.faults.note,
            clock=parts.clock,
        )
        self._poller = Poller(
            self._probe(),
            on_readings=self._observe,
            on_failure=self._probe_failed,
            pace=settings.probe.pace,
            clock=parts.clock,
            watermark=lambda: self.ticker.watermark,  # it looks more often near it
        )
        self._shutdown = ShutdownListener(self.drain)
        self._is_started = self.is_stopped = False

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            room=self.room,
            callers=self._callers,
            builder=self._builder,
            background=self.background,
            clock=self._parts.clock,
            uniform=self._parts.uniform,
            hook=self.hooks,
            on_fault=self.faults.note,
            reply=self.settings.reply,
        )

    def _manners(self) -> Manners:
        cors = Cors(self.settings.cors)

        def stream_headers(scope: Scope) -> HeaderList:
            headers: Headers = scope.get("headers", ())
            return cors.refusal_headers(headers) + preference_applied(headers)

        return Manners(
            replier=Replier(self.settings.reply, self.settings.cors, self._parts.wall_clock),
            keepalive=self.settings.keepalive,
            stream_headers=stream_headers,
            mode=lambda: self.mode,
            body=self.settings.body,
            max_held_bytes=self.settings.queue.max_bytes,
        )

    def start(self) -> None:
        """Begin to poll and to tick (idempotent)."""
        if self._is_started:
            return
        self._is_started = True
        self._poller.start()
        self.ticker.start()
        self._shutdown.start()
        self.hooks(AdmissionEvent(kind=EventKind.MODE, reason=self.mode, detail="at start"))
        self._operator.follow()
        proxies = self.settings.identity.trusted_proxies
        for said in (
            processes.warning(self.settings.processes),
            access.warning(self.settings.console, proxies),
        ):
            if said is not None:
                logger.warning("Tidegate: %s", said)

    async def stop(self) -> None:
        """End the tasks; those who still wait are told to come back."""
        self.is_stopped = True
        self.drain()
        self._shutdown.stop()
        await self._poller.stop()
        await self.ticker.stop()
        self.room.close()

    def drain(self) -> None:
        """The server is stopping: refuse all that is not running (idempotent)."""
        if self.door.is_draining:
            return
        self.door.drain()
        running = self.statistics().running
        self.hooks(AdmissionEvent(kind=EventKind.DRAINING, detail=f"{running} running."))
        self.room.drain()
        self.console.close()

    def set_mode(self, mode: Mode, why: str) -> None:
        """Switch between enforce, shadow and off; running streams go on."""
        self.mode = mode
        if mode != "enforce":
            self.room.let_everyone_pass()
        self.hooks(AdmissionEvent(kind=EventKind.MODE, reason=mode, detail=why))

    def renew(self, settings: Settings) -> None:
        """Serve the tenants of these settings, which have been checked, from now on."""
        self._callers.renew(settings)
        self._builder.renew(settings)
        self.room.set_limits(settings.gate_options())
        self.settings = settings

    def statistics(self) -> Statistics:
        """A snapshot of the gate, with what was refused before it was asked; an empty one if the gate is
        too broken to tell.
        """
        try:
            seen = self.room.statistics()
            return replace(seen, refused={**self._refused.by_reason(), **seen.refused})
        except Exception as error:  # noqa: BLE001 - neither the console nor the shutdown may fail by it
            self.faults.note("statistics", error)
            return Statistics(is_open=True)

    def _probe(self) -> Probe:
        if self._parts.probe is not None:
            try:
                return as_probe(self._parts.probe)
            except TypeError as error:
                raise InvalidSettings(str(error)) from error
        probe, why = find_probe(self.settings.probe, host_app=self._host_app)
        # As loud as what is said when the level is lost: most servers print warnings only.
        logger.warning("Tidegate: the level comes from %s", why)
        return probe

    def _probe_failed(self, instance: str, error: Exception) -> None:
        detail = str(error) or repr(error)
        self.hooks(AdmissionEvent(kind=EventKind.PROBE_FAILED, instance=instance, detail=detail))
        self.room.probe_failed(instance)

    def _observe(self, readings: Sequence[Reading]) -> None:
        self.room.observe(
            [processes.part_of_reading(reading, self.settings.processes) for reading in readings]
        )

    def _nudge(self) -> None:
        self._poller.nudge()

    def _cancel(self, ticket: int) -> None:
        self.door.cancel(ticket)

    def _let_go(self, reason: str) -> None:
        self.hooks(AdmissionEvent(kind=EventKind.LET_GO, reason=reason))

    def _record(self, where: str, error: Exception) -> None:
        self.faults.record(where, error)


def _hooks(settings: Settings, parts: Parts) -> Iterable[Hook]:
    yield LogHook(parts.clock)
    if settings.metrics:
        from tidegate.telemetry.prometheus import prometheus_hook

        yield prometheus_hook()
    yield from parts.hooks
