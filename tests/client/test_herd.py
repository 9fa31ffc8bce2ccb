"""Many callers of one server: refused together, they do not come back together."""

from __future__ import annotations

import asyncio
import bisect
from typing import Any

import httpx
import pytest

from tests.client.stacks import until
from tidegate_client import AsyncRetryTransport, RetryTransport
from tidegate_client.board import Board
from tidegate_client.testing import FakeClock, ScriptedServer, refuse


class Bucket:
    """A server with a token bucket, on a fake clock, that takes 50 ms for every answer."""

    def __init__(self, clock: FakeClock, stated: dict[str, str], burst: int = 20) -> None:
        self.headers = {"retry-after": "1"} | stated
        self.clock = clock
        self.burst, self.rate_per_s = burst, 20.0
        self.tokens, self.refilled = float(burst), clock.now
        self.arrivals: list[float] = []
        self.refusals = 0

    async def __call__(self, request: Any) -> Any:
        self.arrivals.append(self.clock.now)
        self.tokens = min(self.burst, self.tokens + (self.clock.now - self.refilled) * self.rate_per_s)
        self.refilled = self.clock.now
        served = self.tokens >= 1
        self.tokens -= served
        self.refusals += not served
        await self.clock.sleep(0.05)
        return httpx.Response(200) if served else httpx.Response(429, headers=self.headers)


def busiest(instants: list[float], span_s: float = 0.1) -> int:
    """The most instants within any span."""
    instants = sorted(instants)
    return max(bisect.bisect_right(instants, at + span_s) - n for n, at in enumerate(instants))


@pytest.mark.parametrize("seed", [7, 8, 9])
@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"ratelimit-policy": '"default";q=20;w=1'},
        {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"},
    ],
    ids=["learnt", "stated by policy", "stated by limit and reset"],
)
async def test_two_hundred_callers_are_no_herd(seed: int, stated: dict[str, str]) -> None:
    """After the first wave: at most 1.1 calls per success, 4 retries in any 100 ms, 10 % over the ideal
    time; whether the server states its rate or not.
    """
    clock = FakeClock(seed=seed)
    server = Bucket(clock, stated)
    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    began = clock.now
    async with httpx.AsyncClient(transport=transport) as client:
        answers = await asyncio.gather(*(client.post("http://engine/") for _ in range(200)))

    assert {each.status_code for each in answers} == {200}
    assert (len(server.arrivals) - 200) / 180 <= 1.1
    assert busiest(server.arrivals[200:]) <= 4
    assert clock.now - began <= 1.1 * 9.0


def test_a_thousand_strangers_are_no_herd() -> None:
    """Clients that share nothing, told the same time: nobody early, no 100 ms with more than 15 % of them."""
    back: list[float] = []
    for seed in range(1000):
        clock = FakeClock(start=0.0, seed=seed)
        server = ScriptedServer(refuse(30), clock=clock)
        transport = RetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
        transport.handle_request(httpx.Request("POST", "http://engine/", content=b"{}"))
        back.append(server.received[1].at)

    assert min(back) >= 30
    assert busiest(back) <= 150


async def test_appointments_are_kept_and_strangers_wait_for_the_last() -> None:
    """Each call comes at the time named to it alone; a new one comes after the last of them."""
    clock = FakeClock(uniform=0.5)
    told, came = [3, 9, 6], list[tuple[float, str]]()

    async def server(request: httpx.Request) -> httpx.Response:
        came.append((clock.now, request.headers.get("tidegate-attempt", "1")))
        await clock.sleep(0.01)
        if not told:
            return httpx.Response(200)
        error = {"scope": "class", "reason": "queue_full"}
        return httpx.Response(429, headers={"retry-after": f"{told.pop(0)}"}, json={"error": error})

    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    async with httpx.AsyncClient(transport=transport) as client:
        calls = [asyncio.create_task(client.get("http://engine/")) for _ in range(3)]
        await until(lambda: not told)
        await asyncio.gather(*calls, client.get("http://engine/"))

    assert [attempt for _, attempt in came] == ["1", "1", "1", "2", "2", "2", "1"]
    assert [at - 1000.01 for at, _ in came[3:]] == pytest.approx([3.15, 6.3, 9.45, 9.5], abs=0.01)


async def test_no_more_than_the_window_is_under_way_after_a_refusal() -> None:
    """Eight attempts at most have an unknown outcome just after a refusal, whatever the number that waits."""
    clock = FakeClock(seed=3)
    under_way = most = seen = 0

    async def server(request: Any) -> httpx.Response:
        nonlocal under_way, most, seen
        seen += 1
        if seen == 1:
            return httpx.Response(429, headers={"retry-after": "1"})
        under_way += 1
        most = max(most, under_way)
        await clock.sleep(0.9)
        under_way -= 1
        return httpx.Response(429, headers={"retry-after": "1"}) if clock.now < 1010 else httpx.Response(200)

    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    async with httpx.AsyncClient(transport=transport) as client:
        first = asyncio.create_task(client.get("http://engine/"))
        await until(lambda: seen)
        await asyncio.sleep(0)
        rest = [asyncio.create_task(client.get("http://engine/")) for _ in range(100)]
        await until(lambda: clock.now >= 1009)
        assert most <= 8
        for task in (first, *rest):
            task.cancel()
        await asyncio.gather(first, *rest, return_exceptions=True)
