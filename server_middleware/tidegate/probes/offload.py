"""Run a blocking call beside the event loop, one at a time.

Law of this file: a call that hangs costs one daemon thread and nothing else. The executor of the
loop is not used: its threads are joined at exit, so a hanging reading would keep a server from stopping.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tidegate.probes.protocol import ProbeError

T = TypeVar("T")


class Offload(Generic[T]):
    """Runs `call` in a daemon thread; refuses a second run while the first still hangs."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._name = name
        self._running = threading.Lock()

    async def run(self) -> T:
        """Return what the call returned, or raise what it raised.

        Raises:
            ProbeError: the previous call has not come back yet.
        """
        if not self._running.acquire(blocking=False):
            raise ProbeError(f"{self._name}: the previous reading has not come back yet.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        thread = threading.Thread(target=self._work, args=(loop, future), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._running.release()
            raise ProbeError(f"{self._name}: no thread could be started ({error}).") from error
        return await future

    def _work(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]) -> None:
        try:
            settle, value = _set_result, self._call()
        except BaseException as error:  # noqa: BLE001 - handed to the waiter, whatever it is
            settle, value = _set_exception, error  # type: ignore[assignment]
        finally:
            self._running.release()
        try:
            loop.call_soon_threadsafe(settle, future, value)
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits any more


def _set_result(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        # StopIteration cannot travel through a future; SystemExit must not stop the server.
        future.set_exception(error if isinstance(error, Exception) else ProbeError(repr(error)))
