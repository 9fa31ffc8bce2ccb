"""A gated app for real servers: it says what body it got, streams, and counts its calls."""

from __future__ import annotations

import asyncio
import hashlib
import json

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi.replies import ReplyOptions, build_reply, send_reply
from tidegate.asgi.types import Receive, Scope, Send
from tidegate.core.decisions import Reason, Refuse

EVENTS = 5
_calls: list[str] = []
_acknowledged = asyncio.Queue[None]()


async def _inner(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await receive()
        refuse = Refuse(ticket=1, reason=Reason.QUEUE_FULL, scope="model", retry_after_s=2.5)
        await send_reply(build_reply(refuse, scope, None, ReplyOptions(), 0.0), scope, send)
    elif scope["path"].endswith("/chat/completions"):
        await _stream(receive, send)
    else:
        await _echo(scope, receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more and scope["method"] == "POST":
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["method"] == "POST":
        _calls.append(scope["path"])
    elif scope["path"] == "/acknowledge":
        _acknowledged.put_nowait(None)
    seen = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest(), "calls": len(_calls)}
    content = b"" if scope["method"] == "HEAD" else json.dumps(seen).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _stream(receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(EVENTS):
        event = b'data: {"choices":[{"delta":{"content":"t%d"}}]}\n\n' % number
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await _acknowledged.get()  # each waits until the caller has said that it got the one before
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _idle() -> Reading:
    return Reading(kv_usage=0.0, waiting=0, running=0, capacity_tokens=10**9)


app = AdmissionMiddleware(
    _inner,
    settings=Settings.load(
        metrics=False,
        tenants=[
            {"name": "spent", "keys": ["spent"], "requests_per_s": 0.001, "request_burst": 1},
        ],
    ),
    probe=_idle,
)
