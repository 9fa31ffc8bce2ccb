"""A chat backend that answers from a script: refusals, streams, silence, broken connections.

Law of this file: it decides nothing. Each question takes the next reply of the script; what was asked
is kept for the test to look at.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from examples.chat_ui.pages import DEFAULT_API, page_routes


class ConnectionCut(Exception):
    """Ends a stream the way a killed server does."""


@dataclass
class Reply:
    """One scripted answer. An `asyncio.Event` among the chunks holds the stream until it is set."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    chunks: tuple[str | asyncio.Event, ...] = ()
    is_cut: bool = False
    hold: asyncio.Event | None = None  # the whole answer waits for it


def piece(text: str) -> str:
    """One event of a streamed chat completion."""
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n"


DONE = "data: [DONE]\n\n"


def answer(text: str = "Hello from the engine.") -> Reply:
    """A whole streamed answer."""
    return Reply(chunks=(piece(text), DONE))


def refusal(retry_after: str | None = "12", *, reason: str = "queue_full", **headers: str) -> Reply:
    """A 429 in the OpenAI dialect; `retry_after` None leaves the header out."""
    body = {
        "error": {"message": "busy", "type": "server_busy", "code": "RATE_LIMIT_EXCEEDED", "reason": reason}
    }
    named = {} if retry_after is None else {"Retry-After": retry_after}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(429, {"Content-Type": "application/json", **named}, json.dumps(body))


class Stub:
    """The app, its script and its memory."""

    def __init__(self) -> None:
        self.script: deque[Reply] = deque()
        self.asked: list[dict[str, Any]] = []
        self.closed_early = 0
        routes: list[BaseRoute] = [Route("/api/chat", self._chat, methods=["POST"])]
        self.app = Starlette(routes=[*routes, *page_routes(DEFAULT_API)])

    async def _chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        reply = self.script.popleft() if self.script else answer()
        if reply.hold is not None:
            await reply.hold.wait()
        if not reply.chunks:
            return Response(reply.body, reply.status, reply.headers)
        return StreamingResponse(self._stream(reply), reply.status, reply.headers, "text/event-stream")

    async def _stream(self, reply: Reply) -> AsyncIterator[str]:
        try:
            for chunk in reply.chunks:
                if isinstance(chunk, asyncio.Event):
                    await chunk.wait()
                else:
                    yield chunk
        except asyncio.CancelledError:
            self.closed_early += 1
            raise
        if reply.is_cut:
            raise ConnectionCut

    @property
    def questions(self) -> list[str]:
        """The last message of every request."""
        return [asked["messages"][-1]["content"] for asked in self.asked]
