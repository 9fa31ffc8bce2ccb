"""Signs of life for a streamed request that waits: the answer begins before the admission.

Law of this file: once the first sign has been sent, the status is 200 for good; whatever goes wrong
afterwards is told as an event in the stream, in the caller's dialect, and the stream then ends.

The trade-off, which is why this is off by default: proxies cut silent connections after 50 to 60 s and
this keeps them open, but a refusal can no longer be a 429, so clients do not retry by themselves.
"""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, Field

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.replies import Reply
from tidegate.asgi.types import HeaderList, Message, Send

_HEADERS: HeaderList = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the signs back
]
_LARGEST_ERROR_BYTES = 64 * 1024
_SPOKEN = frozenset(
    {
        Dialect.OPENAI_CHAT,
        Dialect.OPENAI_COMPLETIONS,
        Dialect.OPENAI_RESPONSES,
        Dialect.ANTHROPIC_MESSAGES,
        Dialect.VLLM_TOKENS,
        Dialect.COHERE_CHAT,
        Dialect.SGLANG_GENERATE,
    }
)
"""Dialects whose streams are event streams, in which a comment disturbs nobody."""


class KeepAliveOptions(BaseModel):
    """When a waiting stream is given signs of life."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after_s: float | None = Field(default=None, gt=0)
    """Begin the answer after so long in the queue; `None`: never, so that refusals keep their status."""
    interval_s: float = Field(default=10.0, gt=0)
    """Between two signs."""


def may_keep_alive(route: Route, stream: bool) -> bool:
    """Whether the answer will be an event stream that may begin with comments."""
    return stream and route.dialect in _SPOKEN


class EarlyAnswer:
    """The answer of one waiting request, begun by us and gone on with by the app.

    Until the first `beat` it is transparent: `send` passes everything on untouched.

    Args:
        send: the server's.
        route: of the request, for the dialect of an error.
        headers: further headers for the early start, e.g. of CORS.
    """

    def __init__(self, send: Send, route: Route, headers: HeaderList | None = None) -> None:
        self._send = send
        self._route = route
        self._headers = _HEADERS + (headers or [])
        self._error: list[bytes] | None = None
        self.has_begun = False

    async def beat(self, position: int, estimated_wait_s: float | None) -> None:
        """One sign of life: an SSE comment with the place in the queue and the seconds still expected."""
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        wait = "unknown" if estimated_wait_s is None else f"{max(estimated_wait_s, 0):.0f}"
        await self._body(f": tidegate queued position={position} wait={wait}\n\n".encode("ascii"), more=True)

    async def refuse(self, reply: Reply) -> None:
        """The refusal as an event; only after a `beat`."""
        await self._fail(reply.body, reply.status)

    async def send(self, message: Message) -> None:
        """The app's `send`: its start is dropped when ours went out, an error of its own becomes an event."""
        if not self.has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._error = None if 200 <= message["status"] < 300 else [b"%d" % message["status"]]
        elif self._error is None:
            await self._send(message)
        elif message["type"] == "http.response.body":
            await self._collect(message)

    async def _collect(self, message: Message) -> None:
        error = self._error or []
        if sum(map(len, error)) < _LARGEST_ERROR_BYTES:
            error.append(bytes(message.get("body", b""))[:_LARGEST_ERROR_BYTES])
        if not message.get("more_body", False):
            await self._fail(b"".join(error[1:]), int(error[0]))

    async def _fail(self, body: bytes, status: int) -> None:
        name = b"event: error\n" if self._route.dialect is Dialect.ANTHROPIC_MESSAGES else b""
        event = name + b"data: " + _as_event(body, status) + b"\n\n"
        if self._route.dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS):
            event += b"data: [DONE]\n\n"
        await self._body(event, more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _as_event(body: bytes, status: int) -> bytes:
    """The error on one line, and as the object with `error` in it that SDKs look for."""
    try:
        error = json.loads(body)
    except ValueError:
        error = body.decode("utf-8", "replace")
    if not isinstance(error, dict) or "error" not in error:
        error = {"error": {"message": error, "code": status}}
    return json.dumps(error).encode("ascii")
