"""The ASGI middleware: which scopes are ours, and when the gate starts and stops.

Law of this file: pure ASGI, no waiting, no deciding. What is not a guarded request goes to the app
untouched. A wrong configuration is told once: by `lifespan.startup.failed`, which servers log; where there
is no lifespan, in our own log with the first request. Guarded requests then get a 503 that names the
setting, and everything else still works.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from tidegate.asgi.classify import Dialect, RouteTable
from tidegate.asgi.keys import KeyLookup
from tidegate.asgi.replies import misconfigured
from tidegate.asgi.runtime import Parts, Runtime
from tidegate.asgi.types import App, Message, Receive, Scope, Send
from tidegate.core.decisions import Uniform
from tidegate.probes.function import ProbeLike
from tidegate.settings import Mode, Settings
from tidegate.settings_errors import InvalidSettings, named_setting
from tidegate.telemetry.events import Hook

logger = logging.getLogger("tidegate")


class AdmissionMiddleware:
    """Admission control for an ASGI app that serves a large language model.

    Args:
        app: the ASGI app behind the gate.
        settings: default: `Settings.load()`, from TIDEGATE_* and the file named by TIDEGATE_CONFIG.
        probe: an object with `async read()`, or a callable that returns a `Reading`, a list of them or
            a fraction 0..1; default: as `settings.probe` says (`auto` finds the engine by itself).
        clock: monotonic seconds.
        wall_clock: epoch seconds, only for `X-RateLimit-Reset`.
        uniform: floats in [0, 1), for jitter.
        hooks: called with every `AdmissionEvent`.
        keys: looks up the owner of a key that is not in the settings, by its SHA-256 in hexadecimal;
            asked through a cache, see `asgi/keys.py`.

    A configuration error is not raised here: see the law of this file.
    """

    def __init__(
        self,
        app: App,
        settings: Settings | None = None,
        probe: ProbeLike | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        uniform: Uniform = random.random,
        hooks: Sequence[Hook] = (),
        keys: KeyLookup | None = None,
    ) -> None:
        self.app = app
        self._parts = Parts(
            probe=probe,
            keys=keys,
            clock=clock,
            wall_clock=wall_clock,
            uniform=uniform,
            hooks=hooks,
            load=Settings.load if settings is None else None,
        )
        self._runtime: Runtime | None = None  # that of the loop which asked last
        self._runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}
        self._settings: Settings | None = None
        self._host_app: object = None  # the app a server knows: it may know its engine's context limit
        self.error: str | None = None
        self._has_told = False  # of the error
        try:
            self._settings = Settings.load() if settings is None else _checked(settings)
        except ValueError as error:
            self._fail(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if self._settings is None:
            await self._misconfigured(scope, receive, send)
            return
        try:
            runtime = self._running()
        except ValueError as error:
            self._fail(error)
            await self._misconfigured(scope, receive, send)
            return
        # Switched off, the gate still keeps the lock: see the door.
        passes = runtime.mode == "off" and not runtime.settings.identity.require_key
        route = None if passes else runtime.routes.match(scope)
        if route is not None and not (
            route.dialect is Dialect.UNKNOWN_POST and runtime.control.serves(scope)
        ):
            await runtime.door.enter(route, scope, receive, send)
            return
        page = _page(runtime, scope)
        if page is not None:
            await page(scope, receive, send)
        else:
            await self.app(scope, receive, runtime.background.watching(scope, send))

    @property
    def mode(self) -> Mode:
        """`enforce`, `shadow` or `off`; assigning switches at once, streams go on."""
        if self._runtime is not None:
            return self._runtime.mode
        return self._settings.mode if self._settings is not None else "off"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._running().set_mode(mode, "set by the program")

    async def _misconfigured(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._has_told:
            self._has_told = True
            logger.critical("Tidegate is not configured: %s", self.error)
        route = RouteTable().match(scope)
        if route is None:
            await self.app(scope, receive, send)
        else:
            await misconfigured(named_setting(self.error or ""), scope, route, send)

    def _running(self) -> Runtime:
        """The runtime of this loop, made and started when first needed.

        Raises:
            InvalidSettings: there is no valid configuration.
            ValueError: the settings contradict what is here (no such file, no such engine).
        """
        runtime = self._made()
        runtime.start()
        return runtime

    def _made(self) -> Runtime:
        if self._settings is None:
            raise InvalidSettings(self.error or "unknown")
        runtime, loop = self._runtime, _loop()
        if runtime is None or runtime.loop is not loop:
            runtime = self._runtimes.get(loop)
            if runtime is None:
                # As they were read, and the mode switched, last, in whichever loop.
                settings = self._settings if self._runtime is None else self._runtime.settings
                runtime = self._put_together(settings)
                runtime.mode = self.mode
                # Loops may run side by side, in threads; of one that has been closed nothing is kept.
                others = {other: one for other, one in self._runtimes.items() if not other.is_closed()}
                self._runtimes = {**others, loop: runtime}
            self._runtime = runtime
        return runtime

    def _put_together(self, settings: Settings) -> Runtime:
        try:
            return Runtime(self.app, settings, self._parts, self._host_app)
        except ValueError:
            raise
        except Exception as error:
            # Whatever it is (a directory of metrics that is not there, say): it must not take the app along.
            logger.exception("Tidegate: The gate cannot be made on this server.")
            cause = f"{type(error).__name__}: {error}"
            raise InvalidSettings(f"server: the gate cannot be made on it ({cause}); see the log.") from error

    def _fail(self, error: Exception) -> None:
        self.error = str(error)
        if all(loop.is_closed() for loop in self._runtimes):  # one that works in another loop goes on there
            self._settings = None

    def _forget_what_has_stopped(self) -> None:
        """The same loop may start the app once more."""
        former = self._runtimes.get(_loop())
        if former is not None and former.is_stopped:
            del self._runtimes[former.loop]
            self._runtime = None

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._host_app, has_failed = scope.get("app"), False
        try:
            self._forget_what_has_stopped()
            self._made()
        except ValueError as error:
            self._fail(error)
            has_failed = True
        if has_failed:
            self._has_told = True
            await receive()  # lifespan.startup
            await send({"type": "lifespan.startup.failed", "message": f"Tidegate: {self.error}"})
            return

        async def watched(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._running()  # the app is up: its metrics can be found now
            elif message["type"] == "lifespan.shutdown.complete" and _loop() in self._runtimes:
                await self._runtimes[_loop()].stop()
            await send(message)

        await self.app(scope, receive, watched)


def _loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidSettings(
            "server: it runs the app without asyncio (on trio?), and Tidegate needs that: choose an asyncio "
            "worker, e.g. hypercorn --worker-class asyncio."
        ) from None


def _page(runtime: Runtime, scope: Scope) -> App | None:
    """The page of ours that this request asks for."""
    if scope["type"] != "http":
        return None
    pages = (runtime.control, runtime.console)
    return next((page for page in pages if page.serves(scope)), None)


def _checked(settings: object) -> Settings:
    if not isinstance(settings, Settings):
        raise InvalidSettings(f"settings is {settings!r}: pass a tidegate.Settings, e.g. Settings.load(...).")
    settings.check()
    return settings
