"""A gated app for real servers that the test steers and questions over HTTP (`/control`)."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi.types import Message, Receive, Scope, Send

STEERED: dict[str, Any] = {"level": 0.0, "acknowledged": 0, "release": True}
COUNTS = {"started": 0, "told": 0, "returned": 0}
EVENTS_HEADERS = [(b"content-type", b"text/event-stream")]
FILES = tempfile.TemporaryDirectory()  # the server reads what is in it when it likes
PLAIN = [(b"content-type", b"text/plain")]


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    """The app behind the gate."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await _websocket(receive, send)
    elif scope["path"].endswith("/control"):
        await _control(scope, receive, send)
    else:
        await _work(scope, receive, send)


async def _work(scope: Scope, receive: Receive, send: Send) -> None:
    COUNTS["started"] += 1
    try:
        body = await _body(receive)
        prompt = json.loads(body)["prompt"] if body.startswith(b"{") else ""
        await _ANSWERS.get(prompt, _echo)(scope, receive, send)
    finally:
        COUNTS["returned"] += 1


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
    await send({"type": "http.response.body", "body": b"done"})


async def _acknowledged_stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Each chunk waits until the caller has said that it got the one before."""
    await send({"type": "http.response.start", "status": 200, "headers": EVENTS_HEADERS})
    STEERED["acknowledged"] = 0
    for number in range(100):
        while STEERED["acknowledged"] < number:
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _slow_stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": EVENTS_HEADERS})
    for number in range(30):
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
        await asyncio.sleep(0.05)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _hold(scope: Scope, receive: Receive, send: Send) -> None:
    """Works until it is told that the caller has gone, and then until it is released."""
    while (await receive())["type"] != "http.disconnect":
        pass
    COUNTS["told"] += 1
    while not STEERED["release"]:
        await asyncio.sleep(0.005)


async def _trailers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": PLAIN, "trailers": True})
    await send({"type": "http.response.body", "body": b"done"})
    await send({"type": "http.response.trailers", "headers": [(b"x-sum", b"1")], "more_trailers": False})


async def _file(scope: Scope, receive: Receive, send: Send) -> None:
    path = Path(FILES.name) / "sent"
    path.write_bytes(b"from a file")
    await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
    await send({"type": "http.response.pathsend", "path": str(path)})


_ANSWERS: dict[str, Any] = {
    "acknowledged": _acknowledged_stream,
    "slow": _slow_stream,
    "hold": _hold,
    "trailers": _trailers,
    "file": _file,
}


async def _websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message.get("text") or ""})


async def _control(scope: Scope, receive: Receive, send: Send) -> None:
    body = await _body(receive)
    if body:
        STEERED.update(json.loads(body))
    runtime = app._runtime
    statistics = runtime.statistics() if runtime is not None else None
    seen = {
        "queued": statistics.queued if statistics else 0,
        "running": statistics.running if statistics else 0,
        "level": statistics.instances[0].level if statistics and statistics.instances else None,
        "extensions": sorted(scope.get("extensions") or {}),
        "pid": os.getpid(),
        **COUNTS,
    }
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message: Message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _level() -> Reading:
    """A cache that is full of others' work: one that stands still with none is not believed for long."""
    level = STEERED["level"]
    return Reading(kv_usage=level, waiting=0, running=1 if level else 0, capacity_tokens=1_000_000)


app = AdmissionMiddleware(
    inner,
    settings=Settings.load(
        metrics=False,
        probe={"interval_s": 0.1, "stale_after_s": 10},
        tenants=[{"name": "spent", "keys": ["spent"], "requests_per_s": 0.001, "request_burst": 1}],
    ),
    probe=_level,
)
