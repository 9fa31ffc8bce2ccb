"""What one process knows of a server: asked for by one caller, held for all, and forgotten in its time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import AdaptiveConcurrency, AsyncRetryTransport, RateLimited, RetryPolicy, RetryTransport
from tidegate_client.identity import part_keys
from tidegate_client.testing import Board, FakeClock, ScriptedServer, answer, refuse


@pytest.mark.parametrize("recovering", [False, True])
async def test_a_limit_holds_from_the_first_caller_that_asks(recovering: bool) -> None:
    """Another client of the process may have met the server before, and even wait there without a limit."""
    clock, board = FakeClock(), Board()
    under_way = most = 0
    refusals = [refuse(1)] if recovering else []

    async def server(request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        if refusals:
            refusals.pop()
            return httpx.Response(429, headers={"retry-after": "1"})
        under_way += 1
        most = max(most, under_way)
        await clock.sleep(1.0)
        under_way -= 1
        return httpx.Response(200)

    around: dict[str, Any] = {"timebase": clock, "board": board}
    limited = RetryPolicy(concurrency=AdaptiveConcurrency(first=2, most=2), wait_budget_s=600)
    inner = httpx.MockTransport(server)
    async with (
        httpx.AsyncClient(transport=AsyncRetryTransport(inner, **around)) as first,
        httpx.AsyncClient(transport=AsyncRetryTransport(inner, policy=limited, **around)) as second,
    ):
        await first.get("http://engine/")
        for _ in range(3):  # while it recovers the first of these hold tickets that took no place
            waiting = [asyncio.create_task(first.get("http://engine/")) for _ in range(4 * recovering)]
            await asyncio.sleep(0)
            await asyncio.gather(*(second.get("http://engine/") for _ in range(10)), *waiting)
        most = 0
        await asyncio.gather(*(second.get("http://engine/") for _ in range(10)))

    assert most == 2


async def test_throttling_holds_from_the_first_caller_that_asks() -> None:
    """In the same way."""
    clock, board, server = FakeClock(uniform=0.0), Board(), ScriptedServer(then=refuse(None))
    inner = httpx.MockTransport(server)
    for throttle_k in (None, 2.0, 2.0):
        policy = RetryPolicy(max_attempts=1, throttle_k=throttle_k)
        transport = RetryTransport(inner, policy=policy, timebase=clock, board=board)
        with pytest.raises(RateLimited) as caught:
            httpx.Client(transport=transport).get("http://engine/")

    assert caught.value.why == "throttled"


@every_stack
async def test_a_refused_model_is_forgotten(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it recovers each call looks for its model once; afterwards nobody's body is read any more."""
    read: list[Any] = []

    def reading(request: Any) -> Any:
        read.append(request)
        return part_keys(request)

    monkeypatch.setattr("tidegate_client.board.part_keys", reading)
    scene = Scene(stack, refuse(5, scope="model"), refuse(5, scope="model"), answer())
    await scene.post()
    assert len(read) == 1
    await scene.post(json={"model": "another"})
    assert len(read) == 2

    scene.clock.advance(100)
    await scene.post()
    for _ in range(5):
        await scene.post()

    assert len(read) == 3
