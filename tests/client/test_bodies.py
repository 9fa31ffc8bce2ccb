"""Bodies on their way out and in: what may be sent twice, what is closed when, and what is left alone."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

import tidegate_client
from tests.client.real_server import Line, ScriptApp, busy
from tests.client.stacks import Stack, every_stack
from tidegate_client import RetryPolicy
from tidegate_client.testing import Board, FakeClock

QUICK = RetryPolicy(jitter_base_s=0.01, wait_budget_s=5)


class Inner:
    """A transport of either colour that answers with given responses and never reads a request by itself."""

    def __init__(self, stack: Stack, *answers: tuple[int, dict[str, str], list[bytes]]) -> None:
        self.stack = stack
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.streams: list[Stream] = []

    def handle_request(self, request: Any) -> Any:
        self.bodies.append(b"".join(request.stream))
        return self._response()

    async def handle_async_request(self, request: Any) -> Any:
        self.bodies.append(b"".join([chunk async for chunk in request.stream]))
        return self._response()

    def _response(self) -> Any:
        status, headers, chunks = self.answers.pop(0)
        kinds = (self.stack.library.SyncByteStream, self.stack.library.AsyncByteStream)
        stream = type("BothStream", (Stream, *kinds), {})(chunks)
        self.streams.append(stream)
        return self.stack.library.Response(status, headers=headers, stream=stream)


class Stream:
    """A response body that knows how far it was read and whether it was closed."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks, self.read, self.closed = chunks, 0, False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


REFUSED: tuple[int, dict[str, str], list[bytes]] = (
    429,
    {"retry-after": "1"},
    [b'{"error": {"reason": "full"}}'],
)
SERVED: tuple[int, dict[str, str], list[bytes]] = (200, {}, [b"o", b"k"])


async def send(stack: Stack, inner: Inner, **body: Any) -> Any:
    """POST `body` through our transport; returns the transport's response, unread."""
    transport = stack.wrap(inner, timebase=FakeClock(uniform=0.5), board=Board())
    request = stack.library.Request("POST", "http://engine/", **body)
    return (
        await transport.handle_async_request(request) if stack.is_async else transport.handle_request(request)
    )


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
async def test_the_refused_answer_is_closed_before_the_wait(stack: Stack) -> None:
    """While a call waits it holds no connection."""
    closed_at_wait: list[bool] = []
    inner = Inner(stack, REFUSED, SERVED)

    class Watching(FakeClock):
        def wait(self, signal: Any, timeout_s: float) -> None:
            closed_at_wait.append(inner.streams[0].closed)
            super().wait(signal, timeout_s)

        async def wait_async(self, signal: Any, timeout_s: float) -> None:
            closed_at_wait.append(inner.streams[0].closed)
            await super().wait_async(signal, timeout_s)

    transport = stack.wrap(inner, timebase=Watching(uniform=0.5), board=Board())
    request = stack.library.Request("GET", "http://engine/")
    await transport.handle_async_request(request) if stack.is_async else transport.handle_request(request)

    assert closed_at_wait
    assert all(closed_at_wait)


@every_stack
async def test_an_answer_is_not_touched(stack: Stack) -> None:
    """A good answer is handed over unread and open: the first byte is the caller's."""
    inner = Inner(stack, SERVED)
    await send(stack, inner)

    assert inner.streams[0].read == 0
    assert not inner.streams[0].closed


@every_stack
@pytest.mark.parametrize("chunks", [[b"x" * 1000] * 10_000, [b"{"] * 3_000_000], ids=["large", "many pieces"])
async def test_a_refusals_body_is_read_within_bounds(stack: Stack, chunks: list[bytes]) -> None:
    """No refusal makes the client read more than a quarter megabyte; the retry goes on."""
    inner = Inner(stack, (429, {"retry-after": "1"}, chunks), SERVED)
    response = await send(stack, inner)

    assert response.status_code == 200
    assert inner.streams[0].read * len(chunks[0]) <= 258 * 1024
    assert inner.streams[0].closed


def test_a_silent_body_of_a_refusal_does_not_hang(engine: ScriptApp) -> None:
    """A refusal whose body never comes is judged by its headers within seconds, without any time-out of the
    caller's.
    """
    engine.script += [
        Line(429, {"retry-after-ms": "50", "content-length": "10"}, pieces=(b"x",), pause_s=60.0),
        Line(),
    ]
    with tidegate_client.Client(policy=QUICK, timeout=None) as client:
        assert client.get(engine.url).status_code == 200

    assert 1.9 < engine.received[1][0] - engine.received[0][0] < 30


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
async def test_a_dripping_body_of_a_refusal_is_given_up(stack: Stack) -> None:
    """A refusal whose body comes a byte at a time is read for two seconds, not to its end."""
    clock = FakeClock(uniform=0.5)

    class Dripping(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            for chunk in super().__iter__():
                clock.advance(0.1)
                yield chunk

    inner = Inner(stack, (429, {"retry-after": "1"}, Dripping([b"x"] * 1000)), SERVED)
    transport = stack.wrap(inner, timebase=clock, board=Board())
    request = stack.library.Request("GET", "http://engine/")
    answer = (
        transport.handle_request(request)
        if not stack.is_async
        else await transport.handle_async_request(request)
    )

    assert answer.status_code == 200
    assert inner.streams[0].read <= 22


@every_stack
async def test_the_wait_counts_from_the_arrival_of_the_refusal(stack: Stack) -> None:
    """A refusal that names three seconds and takes one to read is followed three seconds after it came."""
    clock = FakeClock(uniform=0.5)

    class Slow(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            for chunk in super().__iter__():
                clock.advance(1)
                yield chunk

    for scope, waited_s in (("tenant", 3.5), ("request", 3.15)):
        body = b'{"error": {"scope": "request"}}' if scope == "request" else b"{}"
        inner = Inner(stack, (429, {"retry-after": "3"}, Slow([body])), SERVED)
        transport = stack.wrap(inner, timebase=clock, board=Board())
        request, began = stack.library.Request("GET", "http://engine/"), clock.now
        if stack.is_async:
            await transport.handle_async_request(request)
        else:
            transport.handle_request(request)

        assert clock.now - began == pytest.approx(waited_s)


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


@every_stack
@pytest.mark.parametrize(
    "body",
    [
        {"chunks": [b'{"error": '], "breaks": True},
        {"chunks": [b"no gzip"], "headers": {"content-encoding": "gzip"}},
    ],
    ids=["broken off", "not what it says"],
)
async def test_a_refusal_whose_body_cannot_be_read_is_obeyed(stack: Stack, body: dict[str, Any]) -> None:
    """Its headers count all the same."""
    library, clock, seen = stack.library, FakeClock(uniform=0.5), []

    class Body(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            yield from body["chunks"]
            if body.get("breaks"):
                raise library.ReadError("gone")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self:
                yield chunk

    def serve(request: Any) -> Any:
        seen.append(clock.now)
        if len(seen) > 1:
            return library.Response(200, content=b"ok")
        headers = {"retry-after": "7", **body.get("headers", {})}
        return library.Response(429, headers=headers, stream=Body())

    caller = stack.caller(library.MockTransport(serve), clock)
    assert (await caller.request("POST", "http://engine/")).status_code == 200
    assert seen[1] - seen[0] >= 7
