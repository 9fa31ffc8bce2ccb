"""A real HTTP server on loopback, run by uvicorn in a thread, that answers chat calls by a script.

Law: shared by all tests that need real connections; nothing in it depends on the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn


@dataclasses.dataclass
class Line:
    """One reply: a status, headers, a JSON body; or pieces sent one after the other, perhaps broken off."""

    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: Any = None
    pieces: tuple[bytes, ...] = ()
    pause_s: float = 0.0
    broken: bool = False


CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def busy(retry_after_ms: float = 50, **headers: str) -> Line:
    """A refusal as Tidegate writes it, short enough for a test in real time."""
    error = {"code": "RATE_LIMIT_EXCEEDED", "type": "server_busy", "message": "busy", "param": None}
    named = {"retry-after": "1", "retry-after-ms": f"{retry_after_ms}"}
    return Line(429, named | headers, {"error": error | {"reason": "queue_full", "scope": "request"}})


class ScriptApp:
    """The ASGI app: replies in order, then a chat answer or a message according to the path."""

    def __init__(self) -> None:
        self.script: list[Line] = []
        self.received: list[tuple[float, str, dict[str, str], bytes]] = []
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.received.append((time.monotonic(), scope["path"], headers, body))
        line = self.script.pop(0) if self.script else self._answer(scope["path"], body)
        await self._send(send, line)

    @staticmethod
    def _answer(path: str, body: bytes) -> Line:
        if b'"stream":true' in body.replace(b" ", b""):
            chunks = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in ("he", "llo")]
            common = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
            events = [b"data: " + json.dumps(common | chunk).encode() + b"\n\n" for chunk in chunks]
            return Line(200, {"content-type": "text/event-stream"}, pieces=(*events, b"data: [DONE]\n\n"))
        return Line(body=MESSAGE if path.endswith("messages") else CHAT)

    @staticmethod
    async def _send(send: Any, line: Line) -> None:
        pieces = line.pieces or (json.dumps(line.body).encode(),)
        headers = {"content-type": "application/json", **line.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": line.status, "headers": raw})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(line.pause_s)
        if line.broken:
            raise RuntimeError("the script breaks the connection off")
        await send({"type": "http.response.body", "body": b""})


@contextlib.contextmanager
def real_server() -> Iterator[ScriptApp]:
    """The app behind a real socket; `url` says where."""
    app = ScriptApp()
    config = uvicorn.Config(
        app, port=0, log_level="critical", ws="none", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    app.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield app
    server.should_exit = True
    thread.join(60)
