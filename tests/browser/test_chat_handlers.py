"""The chat endpoint over ASGI: refusals, waits, failures and callers that leave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from examples.chat_ui.handlers import MAX_BODY_BYTES, ChatApi, rate_limited_response
from tests.browser.serving import PATIENCE_S
from tidegate_client import AsyncClient, RateLimited, RetryPolicy, Why

POLICY = RetryPolicy(
    max_attempts=2, wait_budget_s=1.0, jitter_base_s=0.01, jitter_cap_s=0.01, on_give_up="raise"
)


def busy(wait_ms: int, reason: str = "queue_full") -> httpx.Response:
    """A refusal of the gate."""
    error = {"message": "full", "type": "server_busy", "code": "RATE_LIMIT_EXCEEDED", "reason": reason}
    return httpx.Response(429, headers={"retry-after-ms": str(wait_ms)}, json={"error": error})


def fine() -> httpx.Response:
    """A short streamed answer."""
    return httpx.Response(
        200, content=b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n'
    )


class Engine(httpx.AsyncBaseTransport):
    """Answers in order; an exception is raised, a callable is awaited."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(await request.aread()))
        answer = self.answers.pop(0)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock stands still: what remains of a wait is the whole of it."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)


_origins = count(1)


def chat_app(engine: Engine, policy: RetryPolicy = POLICY) -> Starlette:
    """The endpoint; each has an engine at an origin of its own, since cool-downs are shared by origin."""
    inner = AsyncClient(policy=policy, transport=engine, base_url=f"http://engine-{next(_origins)}")
    api = ChatApi(client=inner, model="tiny")
    return Starlette(routes=[Route("/api/chat", api.answer, methods=["POST"])])


def chat_client(engine: Engine, policy: RetryPolicy = POLICY) -> httpx.AsyncClient:
    """A page's view of the endpoint."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(chat_app(engine, policy)), base_url="http://page")


QUESTION = {"messages": [{"role": "user", "content": "hello"}]}


async def test_answer_passes_unchanged() -> None:
    """The engine's bytes reach the page as they are; the question carries model and bound."""
    engine = Engine(fine())
    async with chat_client(engine) as page:
        answer = await page.post("/api/chat", json=QUESTION)
    assert (answer.status_code, answer.content) == (200, fine().content)
    assert engine.asked[0] | {"messages": 0} == {
        "model": "tiny",
        "messages": 0,
        "stream": True,
        "max_tokens": 400,
    }


@pytest.mark.usefixtures("standing_clock")
async def test_long_refusal_becomes_a_429_with_the_time_that_remains() -> None:
    """A wait beyond the backend's budget is passed on at once: header, milliseconds and body."""
    async with chat_client(Engine(busy(20_000))) as page:
        answer = await page.post("/api/chat", json=QUESTION)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "20"
    assert answer.headers["retry-after-ms"] == "20000"
    assert answer.json()["error"]["reason"] == "queue_full"
    assert answer.json()["error"]["retry_after"] == 20


@pytest.mark.usefixtures("standing_clock")
def test_time_that_has_passed_is_taken_off() -> None:
    """A refusal of ten seconds that is told four seconds later names the six that remain."""
    error = RateLimited(why=Why.OVER_BUDGET, retry_after=10.0, wall_now=time.time() - 4, reason="queue_full")
    answer = rate_limited_response(Request({"type": "http", "headers": []}), error)
    assert answer.headers["retry-after-ms"] == "6000"
    assert answer.headers["retry-after"] == "6"


async def test_refusal_without_a_time_has_none() -> None:
    """No wait is invented: the page makes its own guess and says so."""
    once = RetryPolicy(max_attempts=1, on_give_up="raise")
    async with chat_client(Engine(httpx.Response(429)), once) as page:
        answer = await page.post("/api/chat", json=QUESTION)
    assert answer.status_code == 429
    assert "retry-after" not in answer.headers
    assert "retry_after" not in answer.json()["error"]


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    """Named events of a stream, with their data."""
    blocks = [
        dict(line.split(": ", 1) for line in block.split("\n"))
        for block in answer.text.split("\n\n")
        if block
    ]
    return [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]


async def test_short_wait_is_told_and_then_answered() -> None:
    """The page sees the backend wait, then the answer, in one response."""
    async with chat_client(Engine(busy(20), fine())) as page:
        answer = await page.post("/api/chat", json=QUESTION)
    [(name, wait)] = events(answer)
    assert name == "wait"
    assert wait["wait_s"] > 0
    assert wait["max_attempts"] == 2
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.usefixtures("standing_clock")
async def test_refusal_after_a_wait_is_an_error_event() -> None:
    """Once a byte has left, the refusal comes as an event with the same body."""
    async with chat_client(Engine(busy(20), busy(30_000, "wait_expired"))) as page:
        answer = await page.post("/api/chat", json=QUESTION)
    assert answer.status_code == 200
    (_, _), (name, body) = events(answer)
    assert name == "error"
    assert body["error"]["reason"] == "wait_expired"
    assert body["error"]["retry_after"] == 30


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (httpx.Response(400, json={"error": {"message": "too long"}}), 400, "too long"),
        (httpx.Response(503, text="down"), 503, "down"),
        (httpx.ReadError("reset"), 502, "does not answer"),
    ],
)
async def test_failures_of_the_engine_are_passed_on(answer: Any, status: int, words: str) -> None:
    """An error answer keeps its status and words; a lost engine is a 502."""
    async with chat_client(Engine(answer)) as page:
        got = await page.post("/api/chat", json=QUESTION)
    assert got.status_code == status
    assert words in got.text


async def test_answer_that_breaks_off_ends_with_an_error_event() -> None:
    """What came before is kept; no status can be changed any more."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise httpx.ReadError("reset")

    async with chat_client(Engine(httpx.Response(200, content=broken()))) as page:
        answer = await page.post("/api/chat", json=QUESTION)
    assert answer.text.startswith("data: {}")
    assert events(answer)[0][0] == "error"


BAD: list[tuple[Any, str]] = [
    (b"{", "messages"),
    (b"\xff\xfe", "messages"),
    (b"[]", "messages"),
    (b'{"messages": []}', "1 to 200"),
    (b'{"messages": "hi"}', "1 to 200"),
    (b'{"messages": ["hi"]}', "messages[0]"),
    (b'{"messages": [{"role": "system", "content": "x"}]}', "messages[0].role"),
    (b'{"messages": [{"role": "user", "content": ""}]}', "messages[0].content"),
    (b'{"messages": [{"role": "user", "content": ["x"]}]}', "messages[0].content"),
    (b'{"messages": "' + b"x" * MAX_BODY_BYTES + b'"}', "longer than"),
]


@pytest.mark.parametrize(("body", "words"), BAD)
async def test_bad_questions_are_named(body: bytes, words: str) -> None:
    """What is no conversation gets a 400 that names the field, and costs the engine nothing."""
    engine = Engine()
    async with chat_client(engine) as page:
        answer = await page.post("/api/chat", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
        plain = await page.post("/api/chat", content=json.dumps(QUESTION))
        assert plain.status_code == 400, "a form of another site must not be able to ask"
    assert engine.asked == []


@pytest.mark.parametrize("moment", ["before the answer", "during a wait", "in the answer"])
async def test_caller_that_leaves_ends_the_call(moment: str) -> None:
    """The engine's call is cancelled at once, whatever it was doing, and nothing is left running."""
    ended = asyncio.Event()
    reached = asyncio.Event()

    async def never() -> httpx.Response:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async def endless() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answers = {
        "before the answer": Engine(never),
        "during a wait": Engine(busy(20), never),
        "in the answer": Engine(httpx.Response(200, content=endless())),
    }
    app = chat_app(answers[moment])
    before = asyncio.all_tasks()
    leave = asyncio.Event()
    body = json.dumps(QUESTION).encode()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        return None

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/chat",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    call = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait_for(reached.wait(), PATIENCE_S)
    leave.set()
    await asyncio.wait_for(call, PATIENCE_S)
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
