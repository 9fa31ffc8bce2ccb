"""For the tests of those who use this client: a clock that does not sleep and a server that follows a script.

    clock = FakeClock()
    server = ScriptedServer(refuse(retry_after=30), answer({"ok": True}), clock=clock)
    transport = RetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    assert httpx.Client(transport=transport).get("http://engine/").json() == {"ok": True}
    assert server.received[1].at - server.received[0].at >= 30

Law: deterministic. Time passes only when everybody waits; draws come from a seeded generator or from a
constant.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import itertools
import random
import sys
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from .board import Board
from .timebase import Signal, Timebase

T = TypeVar("T")

__all__ = ["Board", "FakeClock", "Received", "Reply", "ScriptedServer", "answer", "break_off", "refuse"]

_IDLE_TICKS = 30
"""Turns of the event loop without news after which everybody is taken to be waiting."""


class FakeClock(Timebase):
    """A Timebase whose waits take no time: the clock jumps to the end of the earliest.

    For one thread, or the tasks of one event loop, whose servers run in the same process without real I/O.

    Args:
        start: the monotonic clock's first value, seconds.
        wall: the wall clock's first value, epoch seconds.
        uniform: every draw; None for draws from a generator seeded with `seed`.
    """

    def __init__(
        self, start: float = 1000.0, *, wall: float = 1.8e9, uniform: float | None = None, seed: int = 0
    ) -> None:
        self.now = start
        self.waits: list[float] = []
        self._wall_ahead_s = wall - start
        self._uniform = uniform
        self._random = random.Random(seed)  # noqa: S311
        self._sleepers: list[tuple[float, int, _FakeSignal]] = []
        self._order = itertools.count()
        self._jumper: asyncio.Task[None] | None = None

    def monotonic(self) -> float:
        """The fake monotonic clock."""
        return self.now

    def wall(self) -> float:
        """The fake wall clock; both advance together."""
        return self.now + self._wall_ahead_s

    def uniform(self) -> float:
        """The constant, or the next draw of the seeded generator."""
        return self._random.random() if self._uniform is None else self._uniform

    def token(self) -> str:
        """The next name from the seeded generator."""
        return f"{self._random.getrandbits(128):032x}"

    def advance(self, seconds: float) -> None:
        """Let time pass by hand."""
        self.now += seconds

    def signal(self) -> Signal:
        """A signal for `wait`."""
        return _FakeSignal()

    def wait(self, signal: Signal, timeout_s: float) -> None:
        """Jump `timeout_s` ahead, unless the signal is set already."""
        if not _fake(signal).taken():
            self.waits.append(timeout_s)
            self.now += timeout_s

    def loop_signal(self) -> Signal:
        """A signal for `wait_async`."""
        return _FakeSignal()

    async def wait_async(self, signal: Signal, timeout_s: float) -> None:
        """Wait until the signal is set or the clock has jumped `timeout_s` ahead."""
        fake = _fake(signal)
        if fake.taken():
            return
        self.waits.append(timeout_s)
        await self._pause(fake, timeout_s)

    async def _pause(self, fake: _FakeSignal, timeout_s: float) -> None:
        fake.waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + timeout_s, next(self._order), fake))
        if self._jumper is None or self._jumper.done():
            self._jumper = asyncio.create_task(self._jump())
        try:
            await fake.waiter
        finally:
            fake.waiter = None
            fake.taken()

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when it takes more fake time."""
        running, bell = asyncio.ensure_future(work), asyncio.create_task(self.sleep(seconds))
        try:
            await asyncio.wait({running, bell}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise asyncio.TimeoutError
            return running.result()
        finally:
            bell.cancel()
            running.cancel()
            await asyncio.gather(bell, running, return_exceptions=True)

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` of fake time; for servers that take their time."""
        await self._pause(_FakeSignal(), seconds)

    async def _jump(self) -> None:
        while self._sleepers:
            for _ in range(_IDLE_TICKS):
                await asyncio.sleep(0)
            at, _, fake = heapq.heappop(self._sleepers)
            if fake.waiter is not None and not fake.waiter.done():
                self.now = max(self.now, at)
                fake.waiter.set_result(None)


class _FakeSignal:
    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def taken(self) -> bool:
        was_set, self._set = self._set, False
        return was_set


def _fake(signal: Signal) -> _FakeSignal:
    if not isinstance(signal, _FakeSignal):
        raise TypeError(f"a FakeClock waits for signals of its own, not for {signal!r}")
    return signal


@dataclasses.dataclass(frozen=True)
class Reply:
    """One line of the script: an answer, or the name of the transport error to raise instead."""

    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    error: str | None = None


def answer(json: Any = None, status: int = 200, **headers: str) -> Reply:
    """An answer; underscores in header names stand for hyphens."""
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, json)


def refuse(
    retry_after: float | str | None = None,
    *,
    status: int = 429,
    reason: str = "queue_full",
    scope: str | None = None,
    code: str = "RATE_LIMIT_EXCEEDED",
    **headers: str,
) -> Reply:
    """A refusal in Tidegate's form; `retry_after` goes into the header as it is."""
    named = {} if retry_after is None else {"retry-after": f"{retry_after}"}
    error = {"code": code, "type": "server_busy", "message": "busy", "param": None, "reason": reason}
    if scope is not None:
        error["scope"] = scope
    spelt = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, named | spelt, {"error": error})


def break_off(error: str = "ConnectError") -> Reply:
    """No answer: the transport raises its exception of this name."""
    return Reply(error=error)


@dataclasses.dataclass(frozen=True)
class Received:
    """One request as the server saw it, and when (monotonic seconds of the clock)."""

    at: float
    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes


class ScriptedServer:
    """A handler for the MockTransport of httpx or httpx2, sync or async.

    Args:
        script: the replies in order.
        then: the reply to everything after the script.
        clock: says when requests arrived.
    """

    def __init__(self, *script: Reply, then: Reply | None = None, clock: Timebase | None = None) -> None:
        self.received: list[Received] = []
        self._script = list(script)
        self._then = then or answer({"ok": True})
        self._clock = clock or Timebase()

    def __call__(self, request: Any) -> Any:
        """Answer `request` with the next line of the script."""
        headers = dict(request.headers.items())
        now, url = self._clock.monotonic(), str(request.url)
        self.received.append(Received(now, request.method, url, headers, request.content))
        reply = self._script.pop(0) if self._script else self._then
        library = sys.modules[type(request).__module__.partition(".")[0]]
        if reply.error is not None:
            raise getattr(library, reply.error)(f"scripted {reply.error}", request=request)
        if reply.content is not None:
            return library.Response(reply.status, headers=dict(reply.headers), content=reply.content)
        return library.Response(reply.status, headers=dict(reply.headers), json=reply.json)
