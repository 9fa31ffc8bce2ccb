"""How the gate behaves towards callers.

Law of this file: names only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.asgi.body import BodyOptions
from tidegate.asgi.keepalive import KeepAliveOptions
from tidegate.asgi.replies import Replier
from tidegate.asgi.types import HeaderList, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How the gate behaves towards callers.

    Args:
        replier: words refusals.
        keepalive: of streams in the queue.
        stream_headers: further headers of a stream that is started before the app was asked.
        mode: the mode in force.
        body: bounds of each body.
        max_held_bytes: of all bodies that are being read or wait.
    """

    replier: Replier
    keepalive: KeepAliveOptions
    stream_headers: Callable[[Scope], HeaderList]
    mode: Callable[[], str]
    body: BodyOptions
    max_held_bytes: int
