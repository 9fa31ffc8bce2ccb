"""Comments that keep a stream's connection alive while its request is queued.

Law of this file: nothing is sent unless asked for (`keepalive.after_s`). The first comment spends the
status: it is 200 from then on, so the app's own start is swallowed, and whatever goes wrong later is
told by an error event in the caller's dialect. Comments are lines that every SSE reader skips.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from tidegate.asgi.classify import Dialect
from tidegate.asgi.types import HeaderList, Headers, Message, Send, first_header

EVENT_STREAMS = frozenset(
    {
        Dialect.OPENAI_CHAT,
        Dialect.OPENAI_COMPLETIONS,
        Dialect.OPENAI_RESPONSES,
        Dialect.ANTHROPIC_MESSAGES,
        Dialect.SGLANG_GENERATE,
        Dialect.TGI_GENERATE,
    }
)
"""Dialects whose streams are server-sent events."""
_LONGEST_ERROR_BYTES = 64 * 1024
_HEADERS: HeaderList = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the comments back
]


class KeepAliveOptions(BaseModel):
    """Whether and how often a queued stream hears of its place. Times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after_s: float | None = Field(default=None, gt=0)
    """Answer 200 and send comments after this long in the queue; `None`: never."""
    interval_s: float = Field(default=5.0, gt=0)
    """From one comment to the next."""


class KeptStream:
    """The `send` for the app behind a stream that may have been started already.

    Args:
        send: the server's own.
        dialect: in which errors are told.
        headers: further lines of the response that is started here.
    """

    def __init__(self, send: Send, dialect: Dialect, headers: HeaderList) -> None:
        self._send = send
        self._dialect = dialect
        self._headers = headers
        self._failed_status = 0
        self._error = b""
        self.has_started = False
        self._has_answer = False
        self._has_ended = False

    async def tell(self, position: int, wait_s: float | None) -> None:
        """Say where the request stands; starts the response when called first."""
        if not self.has_started:
            self.has_started = True
            headers = [*_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        wait = "" if wait_s is None else f" wait_s={wait_s:.0f}"
        await self._event(f": queued position={position}{wait}\n\n".encode("ascii"), more=True)

    async def send(self, message: Message) -> None:
        """The app's `send`; untouched until the first comment."""
        if not self.has_started:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._has_answer = True
            if not _is_event_stream(message):
                self._failed_status = int(message["status"])
        elif message["type"] == "http.response.body":
            await self._body(message)
        elif message["type"] == "http.response.pathsend":
            await self.fail(_plain_error("The answer was a file and no stream."))
        # Trailers are dropped: the response that was started promised none.

    async def fail(self, body: bytes) -> None:
        """End the stream with an error event; `body` is the JSON of the answer that was to be given."""
        if not self._has_ended:
            await self._event(error_event(body, self._dialect), more=False)

    async def close(self) -> None:
        """The app is done. If it gave no answer at all (it raised, or returned early), say so instead.

        Whoever stands outside can answer no error any more, since the response was started here.
        """
        if self.has_started and not self._has_answer:
            with contextlib.suppress(Exception):  # the caller has gone, or the server sends no more
                await self.fail(_plain_error("The server failed before it answered.", 500))

    async def _body(self, message: Message) -> None:
        more = bool(message.get("more_body", False))
        if not self._failed_status:
            await self._event(message.get("body", b""), more=more)
            return
        if len(self._error) < _LONGEST_ERROR_BYTES:
            self._error += message.get("body", b"")
        if not more:
            await self.fail(_error_json(self._error, self._failed_status))

    async def _event(self, data: bytes, *, more: bool) -> None:
        self._has_ended = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def error_event(body: bytes, dialect: Dialect) -> bytes:
    """A JSON error body as the event by which that dialect's readers raise it."""
    if dialect is Dialect.ANTHROPIC_MESSAGES:
        return b"event: error\ndata: " + body + b"\n\n"
    if dialect is Dialect.OPENAI_RESPONSES:
        whole = msgspec.json.decode(body)
        error = whole.get("error")
        flat = (
            {name: error.get(name) for name in ("code", "message", "param")}
            if isinstance(error, dict)
            else {}
        )
        event = {"sequence_number": 0, **flat, **whole, "type": "error"}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"


def _is_event_stream(start: Message) -> bool:
    headers: Headers = start.get("headers", ())
    kind = (first_header(headers, b"content-type") or "").lower()
    is_plain = first_header(headers, b"content-encoding") is None
    return 200 <= int(start["status"]) < 300 and kind.startswith("text/event-stream") and is_plain


def _error_json(body: bytes, status: int) -> bytes:
    """The app's own error, where it is a JSON object of one line; else one that says what came instead."""
    try:
        fields: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        fields = None
    if status < 400:
        return _plain_error("The answer was no event stream.")
    if isinstance(fields, dict) and fields.get("error"):
        return msgspec.json.encode(fields)
    return _plain_error(f"The server answered with status {status}.", status)


def _plain_error(text: str, code: int = 502) -> bytes:
    return msgspec.json.encode(
        {"type": "error", "error": {"type": "api_error", "code": code, "param": None, "message": text}}
    )
