"""Listeners for waits, one file each: `log`, `console` (rich), `opentelemetry`, `prometheus`.

Law: each is made by a function that imports its library, and returns something to pass as `on_wait`; several
are joined by `several`.
"""

from __future__ import annotations

from ..core.events import WaitEvent
from ..waits import OnWait, tell, tell_end

__all__ = ["several"]


def several(*listeners: OnWait) -> OnWait:
    """One listener that tells all of these; one that fails does not keep the others from hearing."""
    return _Several(listeners)


class _Several:
    def __init__(self, listeners: tuple[OnWait, ...]) -> None:
        self._listeners = listeners

    def __call__(self, event: WaitEvent) -> None:
        for listener in self._listeners:
            tell(listener, event)

    def ended(self, call_id: int) -> None:
        for listener in self._listeners:
            tell_end(listener, call_id)
