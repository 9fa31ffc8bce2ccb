"""Seeing the caller leave, without ever stealing a message from the app.

Law of this file: the server's `receive` is never cancelled by us while a request lives (a server may
lose the message then) and never answered for, with one exception: work that was superseded is told
`http.disconnect` so that the app stops. A WebSocket is watched in the same way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tidegate.asgi.types import Message, Receive

_GONE = frozenset({"http.disconnect", "websocket.disconnect"})
_LEAST_AHEAD_BYTES = 65_536  # what servers buffer of a connection anyway
_LEAST_MESSAGE_BYTES = 64  # what an empty one counts for, so that their number is bounded too


class DisconnectWatch:
    """A `receive` that can also be watched. Until `start` it is a plain pass-through.

    Args:
        receive: the server's own.
        on_gone: called once, when the caller's disconnect has been seen.
    """

    __slots__ = ("_ahead", "_pending", "_receive", "_told", "failure", "is_gone", "on_gone")

    def __init__(self, receive: Receive, on_gone: Callable[[], None] | None = None) -> None:
        self._receive = receive
        self.on_gone = on_gone
        self._ahead: deque[Message] = deque()  # looked at, and not yet asked for
        self._pending: asyncio.Task[Message] | None = None  # the look after them
        self._told: asyncio.Future[None] | None = None
        self.is_gone = False
        self.failure: Exception | None = None
        """What the server's own `receive` has raised: it is for whoever stands around us."""

    def receive(self) -> Coroutine[Any, Any, Message]:
        """The next message, in the server's order."""
        return self._look() if self._pending is None else self._looked(self._pending)

    def start(self) -> None:
        """Begin to look ahead, so that a disconnect is seen even if nobody calls `receive`."""
        if self._pending is None and not self.is_gone:
            self._told = asyncio.get_running_loop().create_future()
            self._pending = asyncio.ensure_future(self._look())

    def tell(self) -> None:
        """Tell the app that its caller has gone (its work was superseded). Needs `start` before."""
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    async def gone(self, answer: asyncio.Future[Any], ahead_bytes: int = 0) -> bool:
        """Wait for `answer` or the caller's leaving, whichever is first; `True`: the caller has left.

        Args:
            answer: what is waited for.
            ahead_bytes: of a body that has not been read, at most so much is looked through and kept for
                the app, since a leaving is seen only after all that was sent before it.
        """
        self.start()
        left_bytes = ahead_bytes + _LEAST_AHEAD_BYTES
        while self._pending is not None and not answer.done():
            await _either(self._pending, answer)
            if not self._pending.done():
                continue
            left_bytes -= self._keep(left_bytes)
            if self._pending.done():
                break  # a disconnect, an error, or more than may be kept
        if self.is_gone and not answer.done():
            return True
        if not answer.done():
            await asyncio.wait({answer})
        return False

    def close(self) -> None:
        """The exchange is over: stop looking ahead."""
        self.on_gone = None  # it points back to whoever holds this watch
        if self._pending is not None and not self._pending.done():
            self._pending.cancel()

    def _keep(self, left_bytes: int) -> int:
        """Keep the message that has come and look for the next; how many bytes it counts for."""
        if self._pending is None or self.is_gone or self._pending.cancelled() or self._pending.exception():
            return 0
        message = self._pending.result()
        holds = message.get("body") or message.get("bytes") or message.get("text") or b""
        kept_bytes = max(len(holds), _LEAST_MESSAGE_BYTES)
        if kept_bytes <= left_bytes:
            self._ahead.append(message)
            self._pending = asyncio.ensure_future(self._look())
        return kept_bytes

    async def _looked(self, pending: asyncio.Task[Message]) -> Message:
        """What a look ahead has found or will find."""
        if self._ahead:
            return self._ahead.popleft()
        if self._told is not None and not pending.done():
            await _either(pending, self._told)
        if self._told is not None and self._told.done() and not pending.done():
            return {"type": "http.disconnect"}
        message = await asyncio.shield(pending)
        if message["type"] not in _GONE:  # a disconnect stays: it is the answer for ever after
            self._pending = None
        return message

    async def _look(self) -> Message:
        try:
            message = await self._receive()
        except Exception as error:
            self.failure = error
            raise
        if message["type"] in _GONE and not self.is_gone:
            self.is_gone = True
            if self.on_gone is not None:
                self.on_gone()
        return message


async def _either(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> None:
    await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
