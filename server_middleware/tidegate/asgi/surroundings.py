"""What everything that lives for one request needs of its middleware.

Law of this file: names only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.asgi.ask import AskBuilder
from tidegate.asgi.background import BackgroundLeases
from tidegate.asgi.callers import Callers
from tidegate.asgi.replies import ReplyOptions
from tidegate.asgi.waiting import WaitingRoom
from tidegate.core.decisions import Uniform
from tidegate.telemetry.events import Hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The parts of one runtime that a request meets."""

    room: WaitingRoom
    callers: Callers
    builder: AskBuilder
    background: BackgroundLeases
    clock: Callable[[], float]
    uniform: Uniform
    hook: Hooks
    on_fault: Callable[[str, Exception], None]
    reply: ReplyOptions
