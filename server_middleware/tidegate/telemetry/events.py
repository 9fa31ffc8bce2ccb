"""The one event type, and the hook that listens to it.

Law of this file: the shell emits, hooks listen, nobody else knows. A hook that raises is logged once
and dropped: telemetry never decides the fate of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec

from tidegate.core.statistics import Statistics

logger = logging.getLogger("tidegate")


class EventKind(Enum):
    """What happened."""

    ADMITTED = "admitted"
    QUEUED = "queued"
    REFUSED = "refused"
    LEFT = "left"  # the caller went away while it was queued
    FIRST_BYTE = "first_byte"
    UPSTREAM_BUSY = "upstream_busy"  # the app itself answered 429 or 503
    ENDED = "ended"
    LET_GO = "let_go"  # the lease of a background response whose end nobody saw
    SHADOWED = "shadowed"  # shadow mode let pass what enforce would have held or refused
    FAULT = "fault"  # an unexpected exception of ours
    PASS_THROUGH = "pass_through"  # the gate opened itself, or closed that opening again
    MODE = "mode"
    DRAINING = "draining"
    PROBE_FAILED = "probe_failed"
    SIGNAL = "signal"  # an instance's signal changed its state
    TICK = "tick"  # once a second, with a snapshot

    __hash__ = object.__hash__  # each is the only one of its name; Enum's own takes a call in Python


class AdmissionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened at the gate. Fields that do not apply are left at their defaults.

    (A msgspec struct: a frozen dataclass of so many fields takes ten times as long to make.)
    """

    kind: EventKind
    ticket: int = 0
    tenant: str = ""
    priority_class: str = ""
    instance: str = ""
    reason: str = ""
    waited_s: float = 0.0
    duration_s: float = 0.0
    position: int = 0
    estimated_wait_s: float | None = None
    retry_after_s: float | None = None
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    status: int = 0
    request_id: str = ""  # of a refusal, as in its X-Request-Id
    detail: str = ""
    error: BaseException | None = None  # of a fault, with its trace
    statistics: Statistics | None = None


Hook = Callable[[AdmissionEvent], None]
"""Is called with every event; one with an attribute `kinds`, a set of `EventKind`, with those only.

A hook of ours that only adds up has an attribute `rows` besides: by kind, what takes the bare row (see
`rows.py`) that it is given instead of the event.
"""

Take = Callable[[tuple[Any, ...]], None]


class Hooks:
    """Fans one event out to every hook that wants it; with none it does nothing.

    Four kinds come with every request. Of those, rows are told by `admitted`, `refused`, `first_byte` and
    `ended`, and an event is made only where somebody `hears` it.
    """

    admitted: Take
    refused: Take
    first_byte: Take
    ended: Take

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: list[Hook] = list(hooks)
        self._listeners: dict[EventKind, tuple[Hook, ...]] = {}
        self._index()

    def __call__(self, event: AdmissionEvent) -> None:
        for hook in self._listeners[event.kind]:
            try:
                hook(event)
            except Exception:
                logger.exception(
                    "Tidegate: Telemetry hook %r raised and was removed; admission goes on without it.", hook
                )
                self._drop(hook)

    def hears(self, kind: EventKind) -> bool:
        """Whether anybody wants such events; where nobody does, none need be made."""
        return bool(self._listeners[kind])

    def add(self, hook: Hook) -> None:
        """One more listener."""
        self._hooks.append(hook)
        self._index()

    def _drop(self, hook: Hook) -> None:
        self._hooks = [other for other in self._hooks if other is not hook]
        self._index()

    def _index(self) -> None:
        wanted = [(hook, getattr(hook, "kinds", None), getattr(hook, "rows", {})) for hook in self._hooks]
        self._listeners = {
            kind: tuple(
                hook for hook, kinds, rows in wanted if kind not in rows and (kinds is None or kind in kinds)
            )
            for kind in EventKind
        }

        def takers(kind: EventKind) -> Take:
            return _all_of([rows[kind] for _, _, rows in wanted if kind in rows])

        self.admitted, self.refused = takers(EventKind.ADMITTED), takers(EventKind.REFUSED)
        self.first_byte, self.ended = takers(EventKind.FIRST_BYTE), takers(EventKind.ENDED)


def _all_of(takers: list[Take]) -> Take:
    """One that tells them all."""

    def tell(row: tuple[Any, ...]) -> None:
        for take in takers:
            try:
                take(row)
            except Exception:
                logger.exception(
                    "Tidegate: Telemetry %r raised and was removed; admission goes on without it.", take
                )
                takers.remove(take)

    return tell
