"""What is known of one request on its way in, and the ways in which that way may end early.

Law of this file: values and names only. `receive` and `send` of an arrival are at any time what the
app would be given.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.asgi.classify import Route
from tidegate.asgi.disconnect import DisconnectWatch
from tidegate.asgi.keepalive import KeptStream
from tidegate.asgi.replies import Reply
from tidegate.asgi.said import Said
from tidegate.asgi.tenant import Caller
from tidegate.asgi.types import HeaderList, Receive, Scope, Send


class CallerLeft(Exception):
    """The caller went away before it was admitted; nobody is there to be answered."""


class Denied(Exception):
    """The request is answered here, without the app."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Bypass(Exception):
    """Shadow mode: the request goes to the app although enforce would have held or refused it."""


@dataclass(slots=True)
class Arrival:
    """A guarded request.

    Args:
        lines: those of its headers that anything of ours reads.
        at: the instant of its arrival.
        said: what its caller says of it.
    """

    scope: Scope
    lines: HeaderList
    route: Route
    watch: DisconnectWatch
    receive: Receive
    send: Send
    at: float
    said: Said
    caller: Caller | None = None
    """Whose key it is, where one is required and has been checked."""
    tenant: str = ""
    priority_class: str = ""
    is_replayable: bool = True
    """Whether the app would still get the whole body."""
    kept: KeptStream | None = None
    """Set once comments have been sent to keep the connection alive: the status is spent then."""
