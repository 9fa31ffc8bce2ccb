"""The deadline covers all that comes before the answer: waits, attempts in every phase, refusals' bodies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

import tidegate_client
from tests.client.stacks import Stack, async_stacks, every_stack, sync_stacks
from tidegate_client import Guard, RateLimited, RetryPolicy, Why
from tidegate_client.testing import Board, FakeClock

TEN_S = RetryPolicy(deadline_s=10)


@async_stacks
async def test_an_attempt_that_takes_its_time_is_cut(stack: Stack) -> None:
    """An attempt that would take a minute costs the ten seconds of the deadline, and is cancelled."""
    clock, ended = FakeClock(uniform=0.5), list[float]()

    async def server(request: Any) -> Any:
        try:
            await clock.sleep(60)
        finally:
            ended.append(clock.now)

    caller = stack.caller(stack.library.MockTransport(server), clock, policy=TEN_S)
    with pytest.raises(stack.library.ReadTimeout, match="deadline_s=10"):
        await caller.request("GET", "http://engine/")

    assert clock.now == 1010
    assert ended == [1010]


@async_stacks
async def test_a_time_out_that_wins_by_a_hair_is_the_deadline(stack: Stack) -> None:
    """Both end with the deadline: whichever is first, the caller is told of the deadline."""
    clock = FakeClock(uniform=0.5)

    def server(request: Any) -> Any:
        clock.advance(10)
        raise stack.library.ConnectTimeout("", request=request)

    caller = stack.caller(stack.library.MockTransport(server), clock, policy=TEN_S)
    with pytest.raises(stack.library.ReadTimeout, match="deadline_s=10"):
        await caller.request("GET", "http://engine/")


@async_stacks
async def test_an_answer_in_time_is_not_touched(stack: Stack) -> None:
    """An answer that begins before the deadline may go on after it."""
    clock = FakeClock(uniform=0.5)

    class Body(stack.library.AsyncByteStream):  # type: ignore[misc,name-defined]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            await clock.sleep(60)
            yield b"late"

    async def server(request: Any) -> Any:
        await clock.sleep(9)
        return stack.library.Response(200, stream=Body())

    caller = stack.caller(stack.library.MockTransport(server), clock, policy=TEN_S)
    answer = await caller.request("GET", "http://engine/")

    assert answer.content == b"late"
    assert clock.now == 1069


@every_stack
async def test_each_phase_has_what_the_ones_before_it_left(stack: Stack) -> None:
    """A library that asks for its time-outs phase by phase is told what is left at that moment."""
    clock, asked = FakeClock(uniform=0.5), list[float]()

    def server(request: Any) -> Any:
        for phase in ("pool", "connect", "write", "read"):
            asked.append(request.extensions["timeout"].get(phase))
            clock.advance(3)
        return stack.library.Response(200)

    caller = stack.caller(stack.library.MockTransport(server), clock, policy=TEN_S)
    await caller.request("GET", "http://engine/", timeout=stack.library.Timeout(60, connect=5))

    assert asked == [10, 5, 4, 1]


@every_stack
async def test_a_refusals_body_is_not_read_past_the_deadline(stack: Stack) -> None:
    """With half a second left, a refusal whose body drips is read for that half second only."""
    clock = FakeClock(uniform=0.5)

    class Dripping(stack.library.SyncByteStream, stack.library.AsyncByteStream):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(100):
                clock.advance(0.1)
                yield b"x"

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self:
                yield chunk

        async def aclose(self) -> None:
            """Nothing to close."""

    def server(request: Any) -> Any:
        clock.advance(9.5)
        return stack.library.Response(429, headers={"retry-after": "1"}, stream=Dripping())

    caller = stack.caller(stack.library.MockTransport(server), clock, policy=TEN_S)
    with pytest.raises(tidegate_client.RateLimited):
        await caller.request("GET", "http://engine/")

    assert clock.now <= 1010.15


async def test_a_server_that_drips_its_headers_is_cut() -> None:
    """Real sockets: a header byte every tenth of a second never ends by itself; the deadline ends it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        caller, _ = listener.accept()
        with caller, contextlib.suppress(OSError):  # until the caller has gone
            caller.recv(65536)
            for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nx-slow: ", itertools.repeat(ord("a"))):
                caller.send(bytes([byte]))
                time.sleep(0.1)

    thread = threading.Thread(target=drip)
    thread.start()
    async with tidegate_client.AsyncClient(policy=RetryPolicy(deadline_s=0.6), timeout=None) as client:
        began = time.monotonic()
        with pytest.raises(httpx.TimeoutException, match=r"deadline_s=0\.6"):
            await client.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
    took_s = time.monotonic() - began
    listener.close()
    thread.join(60)

    assert took_s > 0.5


async def test_a_guarded_coroutine_is_cut_too() -> None:
    """Functions that use no httpx end with a TimeoutError at the deadline; their own TimeoutErrors pass."""
    clock = FakeClock(uniform=0.5)
    guard = Guard("https://api.example", policy=TEN_S, timebase=clock, board=Board())

    @guard
    async def ask(takes_s: float) -> None:
        await clock.sleep(takes_s)
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="deadline_s=10"):
        await ask(60)
    assert clock.now == 1010
    with pytest.raises(TimeoutError, match="mine"):
        await ask(1)


@async_stacks
async def test_a_wait_that_grows_beyond_the_budget_ends_the_call(stack: Stack) -> None:
    """Told 5 s, a call waits; a sibling is then told 500 s, and the first ends at once with that time."""
    clock, asked = FakeClock(uniform=0.5), ["5", "500"]
    sent = 0

    async def serve(request: Any) -> Any:
        nonlocal sent
        sent += 1
        retry_after = asked.pop(0)
        await clock.sleep(1.0 if retry_after == "500" else 0.1)
        return stack.library.Response(429, headers={"retry-after": retry_after})

    caller = stack.caller(stack.library.MockTransport(serve), clock, policy=RetryPolicy(wait_budget_s=60))
    for call in [asyncio.create_task(caller.request("POST", "http://engine/")) for _ in range(2)]:
        with pytest.raises(RateLimited) as caught:
            await call
        assert caught.value.why is Why.OVER_BUDGET
        assert caught.value.retry_after == pytest.approx(500, abs=1.1)
        assert caught.value.response.status_code == 429
    assert sent == 2
    assert clock.now == pytest.approx(1001.0)


@sync_stacks
async def test_a_thread_whose_wait_is_beyond_the_budget_by_then_ends_too(stack: Stack) -> None:
    """While a call is under way, another is told 500 s: the 5 s of its own refusal are not enough."""
    sent = 0

    def serve(request: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 2:
            return stack.library.Response(429, headers={"retry-after": "500"})
        with pytest.raises(RateLimited):
            caller.client.post("http://engine/")
        return stack.library.Response(429, headers={"retry-after": "5"})

    policy, transport = RetryPolicy(wait_budget_s=60), stack.library.MockTransport(serve)
    caller = stack.caller(transport, FakeClock(), policy=policy)
    with pytest.raises(RateLimited) as caught:
        await caller.request("POST", "http://engine/")
    assert caught.value.why is Why.OVER_BUDGET
    assert caught.value.retry_after == pytest.approx(500, abs=1.1)
    assert sent == 2
