"""Bodies on their way out and in: what may be sent twice, and what is left alone."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import tidegate_client
from tests.client.inner import REFUSED, SERVED, Inner, send
from tests.client.real_server import Line, ScriptApp, busy
from tests.client.stacks import Stack, every_stack
from tidegate_client import RetryPolicy
from tidegate_client.testing import FakeClock

QUICK = RetryPolicy(jitter_base_s=0.01, wait_budget_s=5)


@every_stack
@pytest.mark.parametrize(
    "body",
    [
        {"content": b"bytes"},
        {"json": {"a": 1}},
        {"data": {"a": "1"}},
        {"files": {"f": ("name", io.BytesIO(b"file"))}},
        {"files": {"f": ("name", b"bytes")}, "data": {"a": "1"}},
    ],
    ids=["bytes", "json", "form", "seekable file", "multipart in memory"],
)
async def test_a_body_that_can_be_sent_again_is_the_same(stack: Stack, body: dict[str, Any]) -> None:
    """Every attempt carries the same bytes."""
    inner = Inner(stack, REFUSED, REFUSED, SERVED)
    response = await send(stack, inner, **body)

    assert response.status_code == 200
    assert len(inner.bodies) == 3
    assert inner.bodies[0] == inner.bodies[1] == inner.bodies[2] != b""


class Unseekable(io.RawIOBase):
    """A pipe: it can be read once."""

    def __init__(self) -> None:
        self.left = [b"once"]

    def read(self, size: int = -1) -> bytes:
        return self.left.pop() if self.left else b""

    def seekable(self) -> bool:
        return False


@every_stack
async def test_a_one_shot_body_goes_out_once_and_the_answer_comes_back(stack: Stack) -> None:
    """A generator or a pipe is never sent again; the refusal reaches the caller as it came, with its body."""

    async def generated() -> AsyncIterator[bytes]:
        yield b"once"

    once: Any = generated() if stack.is_async else iter([b"once"])
    for body in ({"content": once}, {"files": {"f": ("name", Unseekable())}}):
        inner = Inner(stack, REFUSED)
        response = await send(stack, inner, **body)

        assert response.status_code == 429
        content = await response.aread() if stack.is_async else response.read()
        assert content == b'{"error": {"reason": "full"}}'
        assert len(inner.bodies) == 1


@every_stack
async def test_an_answer_is_not_touched(stack: Stack) -> None:
    """A good answer is handed over unread and open: the first byte is the caller's."""
    inner = Inner(stack, SERVED)
    await send(stack, inner)

    assert inner.streams[0].read == 0
    assert not inner.streams[0].closed


async def test_a_stream_broken_off_is_the_callers(engine: ScriptApp) -> None:
    """After the first byte nothing is sent again: the error comes through, and the server saw one call."""
    engine.script += [Line(pieces=(b"a", b"b"), broken=True)]
    policy = RetryPolicy(retry_read_errors=True, idempotent=True)
    async with (
        tidegate_client.AsyncClient(policy=policy) as client,
        client.stream("GET", engine.url) as response,
    ):
        chunks = response.aiter_raw()
        got = await anext(chunks) + await anext(chunks)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(chunks)

    assert got == b"ab"
    assert len(engine.received) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_waiting_call_leaves_the_connection_to_others(engine: ScriptApp, streamed: bool) -> None:
    """With one connection in the pool, a second call gets through while the first one waits."""
    engine.script += [busy(2000), Line(body="second"), Line(body="first")]
    limits = httpx.Limits(max_connections=1)
    is_waiting = asyncio.Event()
    async with tidegate_client.AsyncClient(
        policy=QUICK,
        limits=limits,
        timeout=httpx.Timeout(60, pool=1),
        on_wait=lambda _event: is_waiting.set(),
    ) as client:

        async def first() -> Any:
            if not streamed:
                return (await client.get(engine.url)).json()
            async with client.stream("GET", engine.url) as response:
                await response.aread()
                return response.json()

        waiting = asyncio.create_task(first())
        await asyncio.wait_for(is_waiting.wait(), 60)
        assert len(engine.received) == 1

        assert (await client.get(engine.url)).json() == "second"
        assert await waiting == "first"


async def test_cancelling_leaves_no_task_and_no_connection(engine: ScriptApp) -> None:
    """A call cancelled while it waits leaves nothing running."""
    engine.script += [busy(20_000)]
    is_waiting = asyncio.Event()
    async with tidegate_client.AsyncClient(
        policy=RetryPolicy(),
        limits=httpx.Limits(max_connections=1),
        on_wait=lambda _event: is_waiting.set(),
    ) as client:
        waiting = asyncio.create_task(client.get(engine.url))
        await asyncio.wait_for(is_waiting.wait(), 60)
        assert len(engine.received) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert len(asyncio.all_tasks()) == 1
        assert (await client.get(engine.url, timeout=60)).status_code == 200


async def test_the_deadline_cuts_a_server_that_hangs() -> None:
    """With a deadline and no time-outs at all, a server that never answers costs the deadline and no more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with tidegate_client.AsyncClient(policy=RetryPolicy(deadline_s=0.5), timeout=None) as client:
            began = time.monotonic()
            with pytest.raises(httpx.TimeoutException, match=r"deadline_s=0\.5"):
                await client.get(url)

    assert time.monotonic() - began > 0.4


@every_stack
async def test_a_body_that_cannot_be_sent_twice_is_not_after_a_broken_connection_either(stack: Stack) -> None:
    """The library may have read some of a generator before it found no connection."""
    tries = []

    class Unreachable:
        def handle_request(self, request: Any) -> Any:
            tries.append(request)
            raise stack.library.ConnectError("refused", request=request)

        async def handle_async_request(self, request: Any) -> Any:
            self.handle_request(request)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"once"

    caller, content = (
        stack.caller(Unreachable(), FakeClock()),
        pieces() if stack.is_async else iter([b"once"]),
    )
    with pytest.raises(stack.library.ConnectError):
        await caller.request("POST", "http://engine/", content=content)
    assert len(tries) == 1
