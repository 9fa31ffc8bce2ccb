"""The clock, the randomness and the waiting of the shell, in one value that tests replace.

Law: the only reader of `time` and `random` in the package, and, with `trio_time`, the only place that
suspends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from .trio_time import TrioSignal, running_trio, trio_within

T = TypeVar("T")


class Signal(Protocol):
    """Ends a wait early; may be set from any thread."""

    def set(self) -> None:
        """End the wait under way, or else the next one, at once."""


class Timebase:
    """Real time. `tidegate_client.testing.FakeClock` is the other one."""

    def monotonic(self) -> float:
        """The monotonic clock, in seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """The wall clock, in epoch seconds."""
        return time.time()

    def uniform(self) -> float:
        """A draw from 0 (included) to 1 (excluded)."""
        return random.random()  # noqa: S311  it spreads retries, it guards nothing

    def token(self) -> str:
        """A name nobody else has: 128 random bits in hexadecimal. No secret, and no system call."""
        return random.getrandbits(128).to_bytes(16, "big").hex()

    def signal(self) -> Signal:
        """A signal for `wait`."""
        return threading.Event()

    def wait(self, signal: Signal, timeout_s: float) -> None:
        """Block this thread until `signal` is set, at most `timeout_s`.

        Raises:
            TypeError: a signal of another kind.
        """
        if not isinstance(signal, threading.Event):
            raise TypeError(f"wait() takes a signal made by signal(), not {signal!r}")
        signal.wait(min(timeout_s, threading.TIMEOUT_MAX))
        signal.clear()

    def loop(self) -> object:
        """The event loop this is called on, of asyncio or of trio, to be compared with another.

        Raises:
            RuntimeError: on neither.
        """
        trio = running_trio()
        return asyncio.get_running_loop() if trio is None else trio.lowlevel.current_trio_token()

    def loop_signal(self) -> Signal:
        """A signal for `wait_async`, bound to the running event loop, of asyncio or of trio."""
        trio = running_trio()
        return _LoopSignal() if trio is None else TrioSignal(trio)

    async def wait_async(self, signal: Signal, timeout_s: float) -> None:
        """Suspend this task until `signal` is set, at most `timeout_s`; cancellation ends it at once.

        Raises:
            TypeError: a signal of another kind.
        """
        if not isinstance(signal, (_LoopSignal, TrioSignal)):
            raise TypeError(f"wait_async() takes a signal made by loop_signal(), not {signal!r}")
        await signal.wait(timeout_s)

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when it takes longer.

        Raises:
            asyncio.TimeoutError: it did.
        """
        trio = running_trio()
        if trio is not None:
            return await trio_within(trio, seconds, work)
        if sys.version_info >= (3, 11):
            async with asyncio.timeout(seconds):
                return await work
        return await _within(seconds, work)


class _LoopSignal:
    """An event of one event loop that other threads may set.

    A future and a timer, and no `asyncio.wait_for`: before Python 3.12 that forgets a cancellation which
    comes in the same turn of the loop as the result, and the call would go on for a caller that has left.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits there any more
            if threading.get_ident() == self._thread:
                self._ring()
            else:
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._is_set = True
        if self._waiter is not None:
            _wake(self._waiter)

    async def wait(self, timeout_s: float) -> None:
        if not self._is_set:
            self._waiter = waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_s, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._is_set = False


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _within(seconds: float, work: Awaitable[T]) -> T:
    """`asyncio.timeout` for Python 3.10, in which no task can tell how often it was cancelled."""
    loop, task, overdue = asyncio.get_running_loop(), asyncio.current_task(), False

    def end() -> None:
        nonlocal overdue
        overdue = True
        if task is not None:
            task.cancel()

    timer = loop.call_later(seconds, end)
    try:
        return await work
    except asyncio.CancelledError:
        if overdue:
            raise asyncio.TimeoutError from None
        raise
    finally:
        timer.cancel()


REAL_TIME = Timebase()
