"""Background responses: the lease outlives the request and ends when the response's end is seen."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest

from tests.server.bed import Raw, bed, explode
from tidegate.asgi import background
from tidegate.asgi.background import BackgroundLeases, ResponseReader, Seen
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.core.decisions import Ending
from tidegate.telemetry.events import EventKind

ASKED = {"model": "m", "input": "hello", "background": True}


class Responses:
    """Answers POST with a running response, and its state when asked for it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"id": "resp_Ab1", "object": "response", "status": "in_progress"}
        self.status = 200
        self.is_stream = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        body = json.dumps(self.state).encode()
        if self.is_stream:
            kind = f"response.{self.state['status']}"
            body = f"event: {kind}\ndata: {json.dumps({'type': kind, 'response': self.state})}\n\n".encode()
        half = len(body) // 2
        await send({"type": "http.response.body", "body": body[:half], "more_body": True})
        await send({"type": "http.response.body", "body": body[half:]})


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
async def test_the_lease_is_held_until_a_poll_shows_the_end(status: str) -> None:
    """The answer to the POST ends nothing, polls that show work change nothing."""
    app = Responses()
    async with bed(app) as b:
        await b.post(ASKED, path="/v1/responses")
        assert b.runtime.statistics().running == 1
        await b.client.get("/v1/responses/resp_Ab1")
        await b.client.get("/v1/responses/resp_other")
        await b.client.get("/v1/models/resp_Ab1")
        assert b.runtime.statistics().running == 1
        app.state |= {"status": status, "usage": {"input_tokens": 7, "output_tokens": 40}}
        await b.client.get("/v1/responses/resp_Ab1")
        assert b.runtime.statistics().running == 0
        ended = [event for event in b.events if event.kind is EventKind.ENDED]
        assert [(event.prompt_tokens, event.output_tokens) for event in ended] == [(7, 40)]


async def test_a_held_lease_keeps_nothing_of_the_answer() -> None:
    """Which repeats the instructions and tools of its request; thousands may be held for minutes."""
    app = Responses()
    app.state["instructions"] = "w" * 500_000
    async with bed(app) as b:
        await Forgetful(b.gate, json.dumps(ASKED).encode()).task
        tracemalloc.start()
        try:
            for number in range(10):
                app.state["id"] = f"resp_{number}"
                await Forgetful(b.gate, json.dumps(ASKED).encode()).task
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()
        assert b.runtime.statistics().running == 11, "the id stands at the beginning, however long the rest"


class Forgetful(Raw):
    """One that is sent to a responses route, and keeps nothing of what comes back."""

    def __init__(self, gate: Any, body: bytes) -> None:
        super().__init__(gate, body)
        self.scope["path"] = "/v1/responses"

    async def _send(self, message: Message) -> None:
        """Gone."""


async def test_who_goes_on_with_a_background_response_is_charged_for_it() -> None:
    """As for one that was answered at once."""
    app = Responses()
    async with bed(app) as b:
        await b.post(ASKED, path="/v1/responses")
        app.state |= {"status": "completed", "usage": {"input_tokens": 4_000, "output_tokens": 1_000}}
        await b.client.get("/v1/responses/resp_Ab1")
        app.state |= {"id": "resp_Ab2", "status": "in_progress"}
        await b.post({**ASKED, "previous_response_id": "resp_Ab1"}, path="/v1/responses")
        assert b.runtime.statistics().instances[0].held_tokens > 5_000


async def test_a_fault_of_ours_at_the_end_keeps_no_lease_and_is_not_the_polls() -> None:
    """What the response cost cannot be noted; it has ended all the same."""
    app = Responses()
    async with bed(app) as b:
        await b.post(ASKED, path="/v1/responses")
        app.state |= {"status": "completed", "usage": {"input_tokens": 7, "output_tokens": 40}}
        b.runtime._builder._conversations.observed = explode
        assert (await b.client.get("/v1/responses/resp_Ab1")).status_code == 200
        assert b.runtime.statistics().running == 0
        assert b.count(EventKind.FAULT) == 1


async def test_a_streamed_look_at_the_response_shows_the_end_too() -> None:
    """`GET /v1/responses/{id}?stream=true`."""
    app = Responses()
    async with bed(app) as b:
        await b.post(ASKED, path="/v1/responses")
        app.is_stream = True
        app.state |= {"status": "completed"}
        await b.client.get("/v1/responses/resp_Ab1?stream=true")
        assert b.runtime.statistics().running == 0


async def test_a_background_stream_that_ends_whole_ends_its_lease() -> None:
    """The end was seen in the stream itself."""
    app = Responses()
    app.is_stream, app.state["status"] = True, "completed"
    async with bed(app) as b:
        await b.post({**ASKED, "stream": True}, path="/v1/responses")
        assert b.runtime.statistics().running == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/responses/resp_Ab1/cancel", 200),
        ("DELETE", "/v1/responses/resp_Ab1", 200),
        ("GET", "/v1/responses/resp_Ab1", 404),
    ],
)
async def test_cancelled_deleted_or_gone_is_an_end(method: str, path: str, status: int) -> None:
    """Whichever way the caller hears of it, so do we."""
    app = Responses()
    async with bed(app) as b:
        await b.post(ASKED, path="/v1/responses")
        app.status = status
        app.state |= {"status": "cancelled"}
        await b.client.request(method, path)
        assert b.runtime.statistics().running == 0


async def test_a_background_request_that_failed_holds_nothing() -> None:
    """No id, or an error: the lease ends with the answer."""
    app = Responses()
    app.status = 400
    async with bed(app) as b:
        await b.post(ASKED, path="/v1/responses")
        assert b.runtime.statistics().running == 0
        app.status, app.state = 200, {"status": "in_progress"}
        await b.post(ASKED, path="/v1/responses")
        assert b.runtime.statistics().running == 0


def test_the_bound_expires() -> None:
    """Nobody ever asks again: the lease is not held for ever."""
    now = [0.0]
    leases, ends = BackgroundLeases(lambda: now[0]), list[Seen]()
    leases.hold("resp_1", ends.append)
    now[0] = background.BOUND_S - 1
    leases.look_after((), lambda instant: 0)
    assert ends == []
    now[0] = background.BOUND_S + 1
    leases.look_after((), lambda instant: 0)
    assert [seen.ending for seen in ends] == [Ending.ABANDONED]
    assert len(leases) == 0


def test_memory_is_bounded_and_an_id_held_twice_ends_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest gives way."""
    monkeypatch.setattr(background, "MAX_HELD", 2)
    leases, ends = BackgroundLeases(lambda: 0.0), list[str]()
    for name in ("a", "b", "b", "c"):
        leases.hold(f"resp_{name}", lambda seen, name=name: ends.append(name))  # type: ignore[misc]
    assert ends == ["b", "a"]
    assert len(leases) == 2


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"status": 7}', b"data: {\n\n", b"\xff" * 100, b"data: []"]
)
def test_nonsense_says_nothing(body: bytes) -> None:
    """No body raises, none ends a lease."""
    reader = ResponseReader()
    reader.feed(body)
    assert reader.seen().ending is None


def test_a_huge_body_is_not_kept() -> None:
    """Bounded memory."""
    reader = ResponseReader()
    for _ in range(300):
        reader.feed(b"x" * 100_000)
    assert len(reader._data) <= 2 * background._LONGEST_BYTES


async def test_a_send_that_is_not_for_a_held_response_is_the_servers_own() -> None:
    """Nothing is wrapped without need."""

    async def send(message: Message) -> None:
        """Never called."""

    leases = BackgroundLeases(lambda: 0.0)
    scope = {"type": "http", "method": "GET", "path": "/v1/responses/resp_1"}
    assert leases.watching(scope, send) is send
    leases.hold("resp_1", lambda seen: None)
    assert leases.watching({**scope, "path": "/health"}, send) is send
    assert leases.watching(scope, send) is not send
