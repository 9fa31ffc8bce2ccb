"""Waiting under trio, where httpx runs too.

Law: trio is never imported, only used where it runs already; what is here does what `timebase` does for
asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


def running_trio() -> Any:
    """The module, when this is called within `trio.run`; else None."""
    trio = sys.modules.get("trio")
    if trio is not None:
        with contextlib.suppress(RuntimeError):
            trio.lowlevel.current_trio_token()
            return trio
    return None


class TrioSignal:
    """An event of one trio run that other threads may set."""

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self._event = trio.Event()

    def set(self) -> None:
        with contextlib.suppress(self._trio.RunFinishedError):  # nobody waits there any more
            if threading.get_ident() == self._thread:
                self._ring()
            else:
                self._token.run_sync_soon(self._ring)

    def _ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        with self._trio.move_on_after(timeout_s):
            await self._event.wait()
        self._event = self._trio.Event()


async def trio_within(trio: Any, seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when it takes longer.

    Raises:
        asyncio.TimeoutError: it did.
    """
    try:
        with trio.fail_after(seconds):
            return await work
    except trio.TooSlowError:
        raise asyncio.TimeoutError from None
