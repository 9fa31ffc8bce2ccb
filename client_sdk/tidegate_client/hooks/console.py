"""A countdown on the terminal while calls wait, drawn by rich.

Law: shows absolute deadlines (a tick that comes late is not added up); one line per waiting call, gone when
it is over. A server's words are text: no markup of the terminal's.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from ..core.events import WaitEvent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_REFRESH_PER_S = 4
_MOST_LINES = 8


class Countdown:
    """A listener and a context manager: `with Countdown() as countdown: AsyncClient(on_wait=countdown)`.

    Args:
        console: where to draw; standard error by default.

    Raises:
        ModuleNotFoundError: without `rich`.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._events: dict[int, WaitEvent] = {}
        self._lock = threading.Lock()
        self._live = Live(
            console=console or Console(stderr=True),
            get_renderable=self.render,
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
        )

    def __call__(self, event: WaitEvent) -> None:
        """Show a wait, or its new length."""
        with self._lock:
            self._events[event.call_id] = event

    def ended(self, call_id: int) -> None:
        """Take a call that waits no more off the list."""
        with self._lock:
            self._events.pop(call_id, None)

    def __enter__(self) -> Countdown:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def render(self) -> Table:
        """The lines as they stand now."""
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            now = time.monotonic()
            self._events = {call: event for call, event in self._events.items() if event.until > now}
            waiting = sorted(self._events.values(), key=lambda event: event.until)
        table = Table.grid(padding=(0, 2))
        for event in waiting[:_MOST_LINES]:
            left_s = f"{event.until - now:.0f} s"
            attempt = f"attempt {event.attempt} of {event.max_attempts}"
            words = (event.origin, event.reason, f"again in {left_s}", attempt)
            table.add_row(*(Text(word) for word in words))
        if len(waiting) > _MOST_LINES:
            table.add_row(f"and {len(waiting) - _MOST_LINES} more")
        return table
