"""On a server that runs the app on trio: said at start; what is not guarded works all the same."""

from __future__ import annotations

import json

import pytest
import trio

from tests.server.bed import App
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.types import Message, Scope


async def _asked(gate: AdmissionMiddleware, scope: Scope) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

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
