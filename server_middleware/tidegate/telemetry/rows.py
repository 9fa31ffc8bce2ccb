"""What every request moves, as bare rows: for hooks of ours that only add up.

Law of this file: no row is lost or told twice, whichever thread asks for them; what is set aside is
bounded. An event is made for whoever wants to hear one; adding up can wait for the next look, and a
thousand rows at once cost a fraction of a thousand events.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from tidegate.telemetry.events import AdmissionEvent, EventKind

Row = tuple[Any, ...]
"""Of an event of one of the kinds in `ROW_OF`, in that order."""

ROW_OF: dict[EventKind, Callable[[AdmissionEvent], Row]] = {
    EventKind.ADMITTED: lambda event: (event.priority_class, event.waited_s),
    EventKind.REFUSED: lambda event: (
        event.tenant,
        event.priority_class,
        event.reason,
        event.waited_s,
        event.retry_after_s,
        event.request_id,
    ),
    EventKind.FIRST_BYTE: lambda event: (event.priority_class, event.duration_s),
    EventKind.ENDED: lambda event: (
        event.priority_class,
        event.status,
        event.duration_s,
        event.prompt_tokens,
        event.output_tokens,
    ),
}
MOST_ROWS = 2048  # set aside before they are added up without being asked for


class Rows:
    """Rows of one kind until they are added up.

    Args:
        take: adds up some of them, under the lock.
        lock: of what `take` changes, where others change it too.
    """

    __slots__ = ("_lock", "_rows", "_take")

    def __init__(self, take: Callable[[list[Row]], None], lock: Lock | None = None) -> None:
        self._take = take
        self._rows: list[Row] = []
        self._lock = Lock() if lock is None else lock

    def append(self, row: Row) -> None:
        """Set one aside."""
        rows = self._rows
        rows.append(row)
        if len(rows) >= MOST_ROWS:
            self.add_up()

    def add_up(self) -> None:
        """Hand on all that have come. Others may append meanwhile: theirs stay for the next time."""
        with self._lock:
            rows = self._rows[:]
            if rows:
                del self._rows[: len(rows)]
                self._take(rows)
