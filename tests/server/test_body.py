"""Bounded reading and exact replay of request bodies (cases M3 and L6)."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.asgi.body import Body, BodyTimeout
from tidegate.asgi.types import Headers, Receive, content_length, with_content_length

DISCONNECT = {"type": "http.disconnect"}


class Server:
    """A server's `receive`: the given messages, then disconnect for ever, as uvicorn does it."""

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        self.messages = list(messages)
        self.calls = 0

    async def receive(self) -> dict[str, Any]:
        self.calls += 1
        return self.messages.pop(0) if self.messages else DISCONNECT


def request(*chunks: bytes, more: bool = False) -> list[dict[str, Any]]:
    last = len(chunks) - 1
    return [
        {"type": "http.request", "body": chunk, "more_body": index < last or more}
        for index, chunk in enumerate(chunks)
    ]


async def read_body(
    receive: Receive, *, headers: Headers, max_bytes: int, timeout_s: float, clock: Callable[[], float]
) -> Body:
    body = Body(receive, content_length(headers), max_bytes)
    waiting = body.begin()
    if waiting is not None:
        await body.finish(waiting, timeout_s=timeout_s, clock=clock)
    return body


async def read(
    server: Server, *, length: int | None = None, max_bytes: int = 1000, timeout_s: float = 5
) -> Body:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return await read_body(
        server.receive, headers=headers, max_bytes=max_bytes, timeout_s=timeout_s, clock=lambda: 0.0
    )


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(0, 60))
@settings(deadline=None)
def test_replay_is_exact_message_for_message_then_the_real_receive(
    chunks: list[bytes], max_bytes: int
) -> None:
    """The app gets the very message objects, then what the server says next, and nothing else."""

    async def run() -> None:
        sent = request(*chunks)
        server = Server(sent)
        body = await read(server, max_bytes=max_bytes)
        replayed = [await body.receive() for _ in range(len(sent))]
        assert all(got is given for got, given in zip(replayed, sent, strict=True))
        assert await body.receive() is DISCONNECT
        assert server.calls == len(sent) + 1

    asyncio.run(run())


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(0, 60))
@settings(deadline=None)
def test_data_is_the_whole_body_or_marked_incomplete(chunks: list[bytes], max_bytes: int) -> None:
    """`complete` says whether `data` may be parsed; never with more than `max_bytes`."""
    body = asyncio.run(read(Server(request(*chunks)), max_bytes=max_bytes))
    whole = b"".join(chunks)
    assert body.complete is (len(whole) <= max_bytes)
    if body.complete:
        assert body.data == whole
        assert body.size_bytes == len(whole)
        assert body.digest() == hashlib.sha256(whole).digest()
    else:
        assert len(body.data) > max_bytes


async def test_single_message_is_not_copied() -> None:
    """The common case holds the bytes once."""
    sent = request(b"x" * 100)
    assert (await read(Server(sent))).data is sent[0]["body"]


async def test_body_declared_too_large_is_not_read_at_all() -> None:
    """Its size is taken from the length, so `Expect: 100-continue` is not triggered for nothing."""
    server = Server(request(b"x" * 50))
    body = await read(server, length=5000, max_bytes=100)
    assert server.calls == 0
    assert (body.complete, body.size_bytes, body.data) == (False, 5000, b"")
    assert (await body.receive())["body"] == b"x" * 50


async def test_reading_stops_at_the_bound_for_bodies_without_length() -> None:
    """A chunked body that never ends fills no more than the bound and one message."""
    server = Server(request(*[b"x" * 60] * 50))
    body = await read(server, max_bytes=100)
    assert server.calls == 2
    assert (body.complete, body.size_bytes) == (False, 120)


async def test_length_that_lies_is_not_believed() -> None:
    """What was read decides, not what was announced."""
    body = await read(Server(request(b"abc")), length=3, max_bytes=2)
    assert body.complete is False
    body = await read(Server(request(b"abc")), length=999, max_bytes=1000)
    assert (body.complete, body.size_bytes) == (True, 3)


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"", b"\xb2", b"9" * 30, b"0x10", b"1_0"])
async def test_malformed_length_is_no_length(value: bytes) -> None:
    """An odd content-length neither raises nor decides anything."""
    body = await read_body(
        Server(request(b"{}")).receive,
        headers=[(b"content-length", value)],
        max_bytes=10,
        timeout_s=1,
        clock=lambda: 0.0,
    )
    assert (body.declared_bytes, body.complete) == (None, True)


async def test_contradicting_lengths_are_no_length() -> None:
    """Two that agree are one; two that differ say nothing."""
    for second, declared in ((b"5", 5), (b"6", None)):
        headers = [(b"content-length", b"5"), (b"content-length", second)]
        body = await read_body(
            Server(request(b"12345")).receive, headers=headers, max_bytes=9, timeout_s=1, clock=lambda: 0.0
        )
        assert body.declared_bytes == declared


@pytest.mark.parametrize("before", [[], request(b"half", more=True)])
async def test_disconnect_while_sending_is_seen_and_replayed(before: list[dict[str, Any]]) -> None:
    """The app need not be called; were it called, it would see what we saw."""
    body = await read(Server(before))
    assert body.disconnected
    assert not body.complete
    assert [await body.receive() for _ in range(len(before) + 1)] == [*before, DISCONNECT]


async def test_missing_body_and_more_body_keys_mean_empty_and_complete() -> None:
    """ASGI lets servers leave both out."""
    body = await read(Server([{"type": "http.request"}]))
    assert (body.complete, body.data) == (True, b"")


async def test_stalled_body_times_out() -> None:
    """A caller that stops sending holds nothing for longer than the bound."""

    async def stalled() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(BodyTimeout, match=r"0\.01 s"):
        await read_body(stalled, headers=[], max_bytes=10, timeout_s=0.01, clock=lambda: 0.0)
    await asyncio.sleep(0)  # the task is not left cancelled
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_dripping_body_times_out_as_a_whole() -> None:
    """One byte now and then does not reset the time-out."""
    now = 0.0

    async def drip() -> dict[str, Any]:
        nonlocal now
        now += 2.0
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(BodyTimeout):
        await read_body(drip, headers=[], max_bytes=10**6, timeout_s=5.0, clock=lambda: now)
    assert now <= 8.0


async def test_cancellation_from_outside_stays_a_cancellation() -> None:
    """A server that shuts down is not told that the body was late."""

    async def stalled() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(read_body(stalled, headers=[], max_bytes=10, timeout_s=60, clock=lambda: 0.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_replaced_data_is_what_the_app_gets() -> None:
    """Clamping is the one exception to exact replay."""
    server = Server(request(b'{"n":', b"99}"))
    body = await read(server)
    body.replace_data(b'{"n":4}')
    assert body.data == b'{"n":4}'
    assert await body.receive() == {"type": "http.request", "body": b'{"n":4}', "more_body": False}
    assert await body.receive() is DISCONNECT


def test_replaced_data_corrects_the_declared_length() -> None:
    """Where one was declared; chunked bodies stay chunked."""
    lines = [(b"host", b"x"), (b"Content-Length", b"99")]
    assert with_content_length(lines, 7) == [(b"host", b"x"), (b"Content-Length", b"7")]
    assert with_content_length(lines[:1], 7) == lines[:1]


async def test_incomplete_body_cannot_be_replaced() -> None:
    """Otherwise its unread part would follow the new data."""
    body = await read(Server(request(b"x" * 50, b"y")), max_bytes=10)
    with pytest.raises(ValueError, match="completely"):
        body.replace_data(b"")


async def test_buffered_messages_come_without_suspension() -> None:
    """Frameworks poll `receive` in scopes already cancelled: a suspension would hide the message."""
    body = await read(Server(request(b"a", b"b")))
    step = body.receive()
    with pytest.raises(StopIteration) as done:
        step.send(None)
    assert done.value.value["body"] == b"a"
