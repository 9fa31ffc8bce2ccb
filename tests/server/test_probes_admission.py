"""Admission beside a probe that hangs."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.server.bed import Lifespan
from tests.server.expositions.misbehaving import hang, serving
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.types import Receive, Scope, Send
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.options import ProbeOptions
from tidegate.probes.prometheus_http import PrometheusHttpProbe

REQUESTS = 60
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    body = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
    await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": body})


async def median_s(probe: Any) -> float:
    """Return the time a request takes, each sent alone."""
    settings = Settings(probe=ProbeOptions(timeout_s=0.3, interval_s=0.02, min_interval_s=0.01))
    app = AdmissionMiddleware(engine, settings=settings, probe=probe)
    costs = []
    async with Lifespan(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gate") as client:
            for _ in range(REQUESTS):
                started = time.perf_counter()
                response = await client.post("/v1/chat/completions", json=BODY)
                costs.append(time.perf_counter() - started)
                assert response.status_code == 200, response.text
                await asyncio.sleep(0.005)
    return statistics.median(costs)


class HangingProbe:
    """Never comes back."""

    async def read(self) -> Any:
        """Hang."""
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["coroutine", "blocking call", "http"])
async def test_admission_takes_no_longer_while_the_probe_hangs(kind: str) -> None:
    """A request neither waits for a reading nor pays for one, however the probe hangs."""
    release = threading.Event()
    blocking: Callable[[], bool] = lambda: release.wait(60)  # noqa: E731
    usual = await median_s(lambda: 0.2)
    async with serving(hang) as server:
        source: Any = {
            "coroutine": HangingProbe(),
            "blocking call": blocking,
            "http": PrometheusHttpProbe(server.url, http=BoundedHttp(timeout_s=0.3)),
        }[kind]
        try:
            hanging = await median_s(source)
        finally:
            release.set()

    assert hanging < 5 * usual + 0.05
