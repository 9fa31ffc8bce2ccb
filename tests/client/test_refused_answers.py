"""The answer of a refusal: read for the client's own purposes, and still whole for the caller."""

from __future__ import annotations

import datetime as dt
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import tidegate_client
from tests.client.inner import REFUSED, SERVED, Inner, send
from tests.client.real_server import Line, ScriptApp
from tests.client.stacks import Stack, every_stack
from tidegate_client import RateLimited, RetryPolicy
from tidegate_client.testing import Board, FakeClock


@every_stack
async def test_the_answer_of_an_error_can_be_read(stack: Stack) -> None:
    """It is in memory, decoded, whether it is asked for its text, its JSON or its bytes."""
    headers = {"retry-after": "300", "content-encoding": "gzip", "content-type": "application/json"}
    inner = Inner(stack, (429, headers, [gzip.compress(b'{"error": {"reason": "full"}}')]))
    with pytest.raises(RateLimited) as caught:
        await send(stack, inner)
    response = caught.value.response

    assert caught.value.reason == "full"
    assert response.text == response.content.decode() == '{"error": {"reason": "full"}}'
    assert response.json() == {"error": {"reason": "full"}}
    assert response.elapsed == dt.timedelta(0)  # on a clock that stood still


@every_stack
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(b"0" * 8_000_000)),
        ("gzip, gzip", gzip.compress(gzip.compress(b"0" * 8_000_000))),
        ("gzip", b"no gzip at all"),
    ],
    ids=["bomb", "bomb in a bomb", "broken"],
)
async def test_a_refusals_body_is_decoded_within_bounds(stack: Stack, coding: str, body: bytes) -> None:
    """A few bytes that stand for megabytes are not unpacked; the refusal is obeyed by its headers."""
    headers = {"retry-after": "1", "content-encoding": coding}
    inner = Inner(stack, (429, headers, [body]), SERVED, (429, headers | {"retry-after": "300"}, [body]))
    assert (await send(stack, inner)).status_code == 200
    tracemalloc.start()
    with pytest.raises(RateLimited) as caught:
        await send(stack, inner)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert caught.value.response.content == b""
    assert peak_bytes < 6_000_000


@every_stack
async def test_time_outs_that_requests_share_stay(stack: Stack) -> None:
    """Reading a refusal is bounded for that refusal alone, however many are read at once."""
    shared = {"connect": 5.0, "read": 60.0, "write": 5.0, "pool": 5.0}
    seen: list[float] = []

    class Watching(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            seen.append(shared["read"])
            return super().__iter__()

    inner = Inner(stack, (429, {"retry-after": "1"}, Watching([b"{}"])), SERVED)
    clock = FakeClock()
    request = stack.library.Request("GET", "http://engine/", extensions={"timeout": shared})
    transport = stack.wrap(inner, timebase=clock, board=Board())
    await transport.handle_async_request(request) if stack.is_async else transport.handle_request(request)

    assert seen == [60.0]
    assert request.extensions["timeout"] is shared


QUICK = RetryPolicy(jitter_base_s=0.01, wait_budget_s=5)


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
