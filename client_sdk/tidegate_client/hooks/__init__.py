"""Listeners for waits, one file each: `logging`, `console` (rich), `opentelemetry`, `prometheus`.

Law: each is made by a function that imports its library, and returns something to pass as `on_wait`; several
are joined by `several`.
"""

from __future__ import annotations

from ..core.events import WaitEvent
from ..waits import OnWait, tell

__all__ = ["several"]


def several(*listeners: OnWait) -> OnWait:
    """One listener that tells all of these; one that fails does not keep the others from hearing."""

    def tell_all(event: WaitEvent) -> None:
        for listener in listeners:
            tell(listener, event)

    return tell_all
