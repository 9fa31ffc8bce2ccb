"""Quotas through the whole middleware: true under steps of the wall clock, over an hour, for many callers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.server.bed import App, Level, until
from tidegate import AdmissionMiddleware, Settings

KEY = {"authorization": "Bearer t"}
BODY = {"prompt": [1] * 10, "max_tokens": 10}


class Clocks:
    """A gate whose clocks the test turns."""

    def __init__(self, **limits: Any) -> None:
        self.now_s, self.wall_s = 1_000.0, 1_700_000_000.0
        self.app = App()
        self.app.chunks = [b'{"usage": {"prompt_tokens": 10, "completion_tokens": 10}}']
        settings = Settings.load(metrics=False, tenants=[{"name": "t", "keys": ["t"], **limits}])
        self.gate = AdmissionMiddleware(
            self.app, settings, Level(), clock=lambda: self.now_s, wall_clock=lambda: self.wall_s
        )
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.gate), base_url="http://gate")

    async def post(self, body: Any = None) -> httpx.Response:
        return await self.client.post("/v1/completions", json=body or BODY, headers=KEY)

    async def __aenter__(self) -> Clocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        if self.gate._runtime is not None:
            await self.gate._runtime.stop()


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_l8_a_step_of_the_wall_clock_neither_refills_nor_locks_out(step_s: float) -> None:
    """L8: only what is said as a date moves with it; the wait stays what it was."""
    async with Clocks(requests_per_s=0.1, request_burst=1) as c:
        assert (await c.post()).status_code == 200
        first = await c.post()
        c.wall_s += step_s
        second = await c.post()
        assert (first.status_code, second.status_code) == (429, 429)
        assert int(first.headers["retry-after-ms"]) == 10_000
        assert int(second.headers["retry-after-ms"]) == 20_000, "the place behind the first"
        moved = int(second.headers["x-ratelimit-reset"]) - int(first.headers["x-ratelimit-reset"])
        assert abs(moved - step_s) <= 11
        c.now_s += 10.0
        assert (await c.post()).status_code == 200


async def test_r9_a_quota_of_an_hour_is_told_as_an_hour() -> None:
    """R9: the bound of 55 s is for load; a quota's wait is told as it is."""
    async with Clocks(requests_per_s=1 / 3600, request_burst=1) as c:
        await c.post()
        refused = await c.post()
        assert int(refused.headers["retry-after"]) == 3600
        assert refused.json()["error"]["retry_after"] == 3600


async def test_l2_ten_callers_over_two_buckets_and_debt_come_back_once() -> None:
    """L2: each is told its own instant; who keeps it is admitted, though answers cost more than predicted."""
    async with Clocks(requests_per_s=2, request_burst=1, tokens_per_s=50, token_burst=60) as c:
        c.app.chunks = [b'{"usage": {"prompt_tokens": 10, "completion_tokens": 30}}']  # 20 beyond its word
        assert (await c.post()).status_code == 200
        waits_ms = [int((await c.post()).headers["retry-after-ms"]) for _ in range(10)]
        assert waits_ms == sorted(set(waits_ms)), "ten different instants"
        began_s = c.now_s
        statuses = []
        for wait_ms in waits_ms:
            c.now_s = began_s + wait_ms / 1000
            statuses.append((await c.post()).status_code)
        assert statuses == [200] * 10


async def test_l11_idle_then_greedy_gets_the_burst_and_the_rate_and_no_more() -> None:
    """L11: burst + rate x time, which is what the settings say."""
    async with Clocks(requests_per_s=1, request_burst=5) as c:
        c.now_s += 1_000.0
        admitted = 0
        for _ in range(600):
            admitted += (await c.post()).status_code == 200
            c.now_s += 0.1
        assert admitted <= 5 + 60
        assert admitted >= 50


async def test_q6_a_cancelled_handler_that_cleans_up_slowly_ends_its_lease_once() -> None:
    """Q6: cancelled by the server while it waits in its own clean-up; nobody gets its slot twice."""
    cleaned = asyncio.Event()

    class Careful(App):
        async def _answer(self, receive: Any, send: Any) -> None:
            try:
                await super()._answer(receive, send)
            finally:
                await asyncio.shield(cleaned.wait())

    app = Careful()
    app.go.clear()
    settings = Settings.load(metrics=False, kv={"max_sequences": 1})
    gate = AdmissionMiddleware(app, settings, Level())
    client = httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://gate", timeout=20)
    sent = asyncio.create_task(client.post("/v1/completions", json=BODY))
    await until(lambda: app.running == 1)
    runtime: Any = gate._runtime
    sent.cancel()
    await asyncio.sleep(0.02)
    assert runtime.statistics().running == 1, "it still works"
    cleaned.set()
    await asyncio.gather(sent, return_exceptions=True)
    assert runtime.statistics().running == 0
    app.go.set()
    answers = await asyncio.gather(*(client.post("/v1/completions", json=BODY) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert runtime.statistics().running == 0
    assert runtime.faults.count == 0
    await client.aclose()
    await runtime.stop()


async def test_a_background_task_after_the_last_byte_holds_no_slot() -> None:
    """The lease ends with the answer; what the app does afterwards is its own affair."""
    lingering = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        await lingering.wait()

    gate = AdmissionMiddleware(app, Settings.load(metrics=False, kv={"max_sequences": 1}), Level())
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    first = asyncio.create_task(gate(scope, receive, send))
    await until(lambda: len(sent) == 2)
    runtime: Any = gate._runtime
    assert runtime.statistics().running == 0
    second = asyncio.create_task(gate(scope, receive, send))
    await until(lambda: len(sent) == 4)
    lingering.set()
    await asyncio.gather(first, second)
    await runtime.stop()
