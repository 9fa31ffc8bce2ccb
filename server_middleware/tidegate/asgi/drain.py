"""Hearing of the shutdown early enough to send the waiting away.

Law of this file: servers tell an app of the shutdown (`lifespan.shutdown`) only after the last request
has ended, so those who queue would hold it up. The signal itself is therefore listened to, beside the
server's own handler, which always runs too.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ShutdownListener:
    """Calls `on_shutdown` in the loop when the process is asked to stop; only in the main thread."""

    def __init__(self, on_shutdown: Callable[[], None]) -> None:
        self._on_shutdown = on_shutdown
        self._loop = asyncio.get_running_loop()
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def is_stale(self) -> bool:
        """Whether its loop has gone; without a lifespan nobody has told us of the end."""
        return self._loop.is_closed()

    def start(self) -> None:
        """Listen. In another thread than the main one signals cannot be heard, and nothing is done."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            listener = getattr(previous, "__self__", None)
            if isinstance(listener, ShutdownListener) and listener.is_stale:
                listener.stop()  # else stale ones would pile up
                previous = signal.getsignal(number)
            if callable(previous):  # with the default action there is no server that drains
                self._previous[number] = previous
                signal.signal(number, self._on_signal)

    def stop(self) -> None:
        """Give the handlers back, unless somebody has set others since."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[signal.Signals(number)]
        if self.is_stale:
            self.stop()
        else:
            self._loop.call_soon_threadsafe(self._on_shutdown)
        previous(number, frame)
