"""The clock, the randomness and the waiting of the shell, in one value that tests replace.

Law: the only reader of `time` and `random` in the package, and the only place that suspends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

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

    def loop_signal(self) -> Signal:
        """A signal for `wait_async`, bound to the running event loop."""
        return _LoopSignal()

    async def wait_async(self, signal: Signal, timeout_s: float) -> None:
        """Suspend this task until `signal` is set, at most `timeout_s`; cancellation ends it at once.

        Raises:
            TypeError: a signal of another kind.
        """
        if not isinstance(signal, _LoopSignal):
            raise TypeError(f"wait_async() takes a signal made by loop_signal(), not {signal!r}")
        await signal.wait(timeout_s)

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when it takes longer.

        Raises:
            asyncio.TimeoutError: it did.
        """
        return await asyncio.wait_for(work, seconds)


class _LoopSignal:
    """An event of one event loop that other threads may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits there any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        self._event.clear()


REAL_TIME = Timebase()
