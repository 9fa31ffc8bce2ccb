"""The answer of a refusal: read for the client's own purposes, and still whole for the caller."""

from __future__ import annotations

import datetime as dt
import gzip
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.client.stacks import Stack, every_stack
from tests.client.test_bodies import SERVED, Inner, send
from tidegate_client import RateLimited
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
