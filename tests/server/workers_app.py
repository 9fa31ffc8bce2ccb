"""A gated app for several workers: each answer says which process gave it."""

from __future__ import annotations

import os

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi.types import Receive, Scope, Send

BURST = 8


async def _inner(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b"%d" % os.getpid()})


async def _idle() -> Reading:
    return Reading(kv_usage=0.0, waiting=0, running=0, capacity_tokens=1_000_000)


app = AdmissionMiddleware(
    _inner,
    settings=Settings.load(
        metrics=False,
        tenants=[{"name": "t", "keys": ["t"], "requests_per_s": 0.001, "request_burst": BURST}],
    ),
    probe=_idle,
)
