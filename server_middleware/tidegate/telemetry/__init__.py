"""Events and the hooks that listen to them. `AdmissionEvent` is the one type; see `events.py`."""

from __future__ import annotations

from tidegate.telemetry.events import AdmissionEvent, EventKind, Hook, Hooks

__all__ = ["AdmissionEvent", "EventKind", "Hook", "Hooks"]
