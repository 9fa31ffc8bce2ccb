"""The upstream-service example, run as a reader would run it, before a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from examples.upstream_service.app import create_app, patience_s
from tests.client.real_server import Line, ScriptApp, busy
from tidegate_client import RetryPolicy

POLICY = RetryPolicy(jitter_base_s=0.01, min_wait_s=0.01)


pytestmark = pytest.mark.usefixtures("own_board")


@contextlib.asynccontextmanager
async def service(engine: ScriptApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the running service."""
    app = create_app(engine.url, POLICY)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client


async def test_a_busy_model_is_waited_for(engine: ScriptApp) -> None:
    """Two refusals later the caller has its summary; its key and its patience reached the model's server."""
    engine.script += [busy(), busy()]
    headers = {"prefer": "wait=20", "idempotency-key": "mine"}
    async with service(engine) as client:
        answer = await client.post("/summaries", json={"text": "The tide comes in."}, headers=headers)

    assert answer.json() == {"summary": "hello"}
    assert [each["idempotency-key"] for _, _, each, _ in engine.received] == ["mine"] * 3
    name, _, seconds = engine.received[0][2]["prefer"].partition("=")
    assert name == "wait"
    assert 0 < int(seconds) <= 20


async def test_a_model_busy_for_longer_is_an_honest_503(engine: ScriptApp) -> None:
    """A wait beyond the caller's patience is told at once, with the time."""
    engine.script += [busy(45_000)]
    async with service(engine) as client:
        answer = await client.post("/summaries", json={"text": "t"}, headers={"prefer": "wait=20"})

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "45"
    assert answer.json() == {"error": "busy", "reason": "queue_full", "retry_after": 45}


async def test_the_status_shows_who_waits(engine: ScriptApp) -> None:
    """While a call waits, /status has its reason and its seconds."""
    engine.script += [busy(20_000)]
    async with service(engine) as client:
        call = asyncio.create_task(client.post("/summaries", json={"text": "t"}))
        shown: list[Any] = []
        while not shown:
            shown = (await client.get("/status")).json()
            await asyncio.sleep(0.01)
        call.cancel()

    assert shown[0]["reason"] == "queue_full"
    assert 0 < shown[0]["seconds"] <= 21


async def test_other_failures_and_bad_input(engine: ScriptApp) -> None:
    """A model that fails is a 502; a body without a text is a 400 that says what to send."""
    engine.script += [Line(500, body={})]
    async with service(engine) as client:
        assert (await client.post("/summaries", json={"text": "t"})).status_code == 502
        for body in (b"", b"[]", b'{"text": 3}', b'{"text": ""}', b"\xff"):
            answer = await client.post("/summaries", content=body)
            assert answer.status_code == 400
            assert "send JSON" in answer.json()["error"]


async def test_a_model_server_that_is_gone_is_a_502() -> None:
    """Nothing listens there any more: an answer, and no traceback."""
    app = create_app("http://127.0.0.1:9", RetryPolicy(max_attempts=1))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            answer = await client.post("/summaries", json={"text": "t"}, headers={"prefer": "wait=2"})
    assert (answer.status_code, answer.json()) == (502, {"error": "the model's server does not answer"})


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [("wait=20", 20), ("respond-async, wait=5", 5), ("", 30), ("wait=0", 1), ("wait=99999", 300)],
)
def test_patience_comes_from_the_caller(prefer: str, seconds: float) -> None:
    """`Prefer: wait` within bounds, else the default."""
    assert patience_s(prefer) == seconds
