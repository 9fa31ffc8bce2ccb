"""On a server that runs the app on trio: said at start; what is not guarded works all the same."""

from __future__ import annotations

import asyncio
import json

import pytest
import trio

from tests.server.bed import App
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.types import Message, Scope


async def _asked(gate: AdmissionMiddleware, scope: Scope) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        if scope["type"] == "lifespan":
            return {"type": "lifespan.startup"}
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(scope, receive, send)
    return sent


async def _app(scope: Scope, receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]


def test_the_start_fails_with_the_way_out() -> None:
    """Servers log it and stop."""
    gate = AdmissionMiddleware(App(), settings=Settings.load(metrics=False))
    (message,) = trio.run(_asked, gate, {"type": "lifespan"})
    assert message["type"] == "lifespan.startup.failed"
    assert "asyncio" in message["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/health", 200), ("POST", "/v1/completions", 503)]
)
def test_without_a_lifespan_only_guarded_requests_are_refused(method: str, path: str, status: int) -> None:
    """None by an error of the server."""
    gate = AdmissionMiddleware(_app, settings=Settings.load(metrics=False))
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": []}
    sent = trio.run(_asked, gate, scope)
    assert sent[0]["status"] == status
    if status == 503:
        assert json.loads(sent[1]["body"])["error"]["reason"] == "misconfigured"


def test_a_gate_that_works_elsewhere_goes_on_there() -> None:
    """One app may be run by both, side by side or in turn: by tests, say."""
    gate = AdmissionMiddleware(_app, settings=Settings.load(metrics=False))
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(_asked(gate, scope))[0]["status"] == 200
        assert trio.run(_asked, gate, {"type": "lifespan"})[0]["type"] == "lifespan.startup.failed"
        assert trio.run(_asked, gate, scope)[0]["status"] == 503
        assert loop.run_until_complete(_asked(gate, scope))[0]["status"] == 200
    finally:
        for runtime in gate._runtimes.values():
            loop.run_until_complete(runtime.stop())
        loop.close()
