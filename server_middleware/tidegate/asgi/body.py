"""Reads a request body within bounds of size and time, and hands it back exactly.

Law of this file: the app behind us receives the very messages the server sent, in order, and after
them whatever the server's own `receive` says; nothing is ever made up. An empty `http.request` after
the body would spin Starlette's disconnect listener, and an early `http.disconnect` would cut the
answer short. Nothing is awaited before a buffered message is handed out, since frameworks poll
`receive` inside scopes that are already cancelled.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from types import CoroutineType, TracebackType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate.asgi.bytes_held import NoRoom, OneBody
from tidegate.asgi.eager import Begun
from tidegate.asgi.types import Message, Receive


class BodyOptions(BaseModel):
    """Bounds of what is read before the decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Larger bodies are not held; see `oversize`."""
    oversize: Literal["reject", "pass"] = "reject"
    """`reject` answers 413; `pass` prices a larger body by its length, and no field of it is looked at."""
    timeout_s: float = Field(default=30.0, gt=0)
    """A body that takes longer to arrive is answered 408."""


class BodyTimeout(Exception):
    """The body did not arrive in time; nothing has been passed to the app."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request body did not arrive within {timeout_s:g} s (body.timeout_s).")
        self.timeout_s = timeout_s


class Body:
    """What was read, and the `receive` with which the app reads it again.

    Args:
        receive: the server's own.
        declared_bytes: its `content-length`.
        max_bytes: nothing beyond it is buffered, but for the message that crosses it; a body declared
            larger is not read at all.
        held: told the size of each part, and how the waiting for the next may be ended; what it raises
            ends the reading. `None`: nobody counts.
    """

    __slots__ = (
        "_held",
        "_max_bytes",
        "_messages",
        "_receive",
        "complete",
        "declared_bytes",
        "disconnected",
        "read_bytes",
    )

    def __init__(
        self, receive: Receive, declared_bytes: int | None, max_bytes: int, held: OneBody | None = None
    ) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._held = held
        self._messages: deque[Message] = deque()
        self.declared_bytes = declared_bytes
        self.read_bytes = 0
        self.complete = False
        """Whether `data` is the whole body. When not, only `size_bytes` may be trusted."""
        self.disconnected = False
        """Whether the caller left while sending; the app must not be called then."""

    @property
    def data(self) -> bytes:
        """What has been read and not yet been replayed. Joined on each call: nothing is held twice."""
        parts = [message.get("body", b"") for message in self._messages]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def size_bytes(self) -> int:
        """The best known size of the body."""
        return self.read_bytes if self.complete else max(self.declared_bytes or 0, self.read_bytes)

    def digest(self) -> bytes:
        """SHA-256 of `data`; equal bodies have equal digests."""
        return hashlib.sha256(self.data).digest()

    def replace_data(self, data: bytes) -> None:
        """Puts `data` in the place of a complete body; the only exception to exact replay.

        The caller must also correct the scope's headers (`types.with_content_length`).

        Raises:
            ValueError: the body is not complete, so part of it would be lost.
        """
        if not self.complete:
            raise ValueError("Only a body that was read completely can be replaced.")
        self._messages = deque([{"type": "http.request", "body": data, "more_body": False}])
        self.read_bytes = len(data)

    async def receive(self) -> Message:
        """The ASGI `receive` for the app."""
        if self._messages:
            return self._messages.popleft()
        return await self._receive()

    def begin(self) -> Awaitable[Message] | None:
        """Takes what has come along with the headers, which as a rule is all.

        Returns:
            What is still to be awaited by `finish`; `None`: nothing.

        Raises:
            NoRoom: there is none for it.
        """
        if self.declared_bytes is not None and self.declared_bytes > self._max_bytes:
            return None
        waiting = self._receive()
        if not isinstance(waiting, CoroutineType):
            return waiting
        begun: Begun[Message] = Begun(waiting)
        if not begun.is_done:
            return begun
        return None if self._take(begun.result) else self._receive()

    async def finish(
        self, waiting: Awaitable[Message], *, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        """Reads the rest.

        Args:
            waiting: as `begin` returned it.
            timeout_s: for all of it, from now on.
            clock: monotonic seconds.

        Raises:
            BodyTimeout: it did not arrive in time.
            NoRoom: there is none for it, or it had to give way.
        """
        deadline_at = clock() + timeout_s
        async with _Deadline(timeout_s, self._held):
            while not self._take(await waiting):
                if clock() > deadline_at:
                    raise BodyTimeout(timeout_s)
                waiting = self._receive()

    def _take(self, message: Message) -> bool:
        """Buffers a message; `True` when nothing more is to be read.

        Then the body is whole, or larger than it may be, or the caller has gone.
        """
        self._messages.append(message)
        if message["type"] != "http.request":
            self.disconnected = message["type"] == "http.disconnect"
            return True
        part_bytes = len(message.get("body", b""))
        self.read_bytes += part_bytes
        if self._held is not None:
            self._held.arrived(part_bytes)
        if not message.get("more_body", False):
            self.complete = self.read_bytes <= self._max_bytes
            return True
        return self.read_bytes > self._max_bytes


class _Deadline:
    """Cancels the block after `timeout_s`, or when `held` is to give way; no task is made.

    (`asyncio.timeout` does the first from Python 3.11 on; 3.10 is supported too.)

    Raises:
        BodyTimeout, NoRoom: what the cancellation is turned into.
    """

    def __init__(self, timeout_s: float, held: OneBody | None) -> None:
        self._timeout_s = timeout_s
        self._held = held
        self._error: BodyTimeout | NoRoom | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("A body must be read inside an asyncio task.")
        self._task = task
        self._handle = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)
        if self._held is not None:
            self._held.give_up = self._give_up

    def _expire(self) -> None:
        self._end(BodyTimeout(self._timeout_s))

    def _give_up(self) -> None:
        self._end(NoRoom())

    def _end(self, error: BodyTimeout | NoRoom) -> None:
        if self._error is None:
            self._error = error
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._handle.cancel()
        if self._held is not None:
            self._held.give_up = None
        if self._error is None:
            return False
        cancelled_by_others = sys.version_info >= (3, 11) and self._task.uncancel() > 0
        if kind is asyncio.CancelledError and not cancelled_by_others:
            raise self._error from error
        return False
