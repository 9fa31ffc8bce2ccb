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
        self._previous: dict[int, Any] = {}
        self._has_stopped = False

    @property
    def is_stale(self) -> bool:
        """Whether nobody is to be told any more; without a lifespan only the end of the loop says so."""
        return self._has_stopped or self._loop.is_closed()

    def start(self) -> None:
        """Listen where a server has handlers of its own; else nothing drains, and whoever is interrupted
        (a notebook, a debugger) may well go on. Signals can only be heard in the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            listener = getattr(previous, "__self__", None)
            if isinstance(listener, ShutdownListener) and listener.is_stale:
                listener.stop()  # else stale ones would pile up
                previous = signal.getsignal(number)
            if callable(previous) and previous is not signal.default_int_handler:
                self._previous[number] = previous
                signal.signal(number, self._on_signal)

    def stop(self) -> None:
        """Give the handlers back where nobody has set others since; those go on through us."""
        self._has_stopped = True
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_stale:
            self.stop()
        else:
            self._loop.call_soon_threadsafe(self._on_shutdown)
        self._previous[number](number, frame)
