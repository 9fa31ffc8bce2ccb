"""The real openai and anthropic SDKs, sync and async, through the gate on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anthropic
import openai
import pytest

from tests.server.bed import Bed, Level, bed, until
from tests.serving import serving
from tidegate.asgi.types import Receive, Scope, Send, first_header
from tidegate.testing import create_engine_app

T = TypeVar("T")
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
ASKED: list[Any] = [{"role": "user", "content": "hello"}]
QUOTA = [{"name": "t", "keys": ["k"], "requests_per_s": 0.5, "request_burst": 1}]
SPENT = [{"name": "t", "keys": ["k"], "requests_per_s": 0.01, "request_burst": 1}]
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 0,
    "status": "completed",
    "model": "m",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "ahoy"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


class Dialects:
    """Chat and completions by the engine simulator, Responses and messages by hand."""

    def __init__(self) -> None:
        self.engine = create_engine_app()
        self.attempts: list[str | None] = []
        self.silent = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.attempts.append(first_header(scope["headers"], b"x-stainless-retry-count"))
        if scope["type"] == "http" and scope["path"] in ("/v1/responses", "/v1/messages"):
            await self._by_hand(scope["path"], receive, send)
        else:
            await self.engine(scope, receive, send)

    async def _by_hand(self, path: str, receive: Receive, send: Send) -> None:
        asked = json.loads((await receive())["body"])
        if asked["model"] == "silent":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        is_message = path == "/v1/messages"
        if not asked.get("stream"):
            await send({"type": "http.response.start", "status": 200, "headers": JSON})
            body = json.dumps(MESSAGE if is_message else RESPONSE).encode()
            await send({"type": "http.response.body", "body": body})
            return
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        for event in _message_events() if is_message else _response_events():
            line = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _message_events() -> list[dict[str, Any]]:
    block = {"type": "text", "text": ""}
    return [
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ahoy"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def _response_events() -> list[dict[str, Any]]:
    created = {**RESPONSE, "status": "in_progress"}
    return [
        {"type": "response.created", "sequence_number": 0, "response": created},
        {"type": "response.completed", "sequence_number": 1, "response": RESPONSE},
    ]


@asynccontextmanager
async def standing(level: Level | None = None, **settings: Any) -> AsyncIterator[tuple[Bed, Dialects, str]]:
    """A gate before all dialects, on a real uvicorn."""
    app = Dialects()
    async with bed(app, level, **settings) as b, serving(b.gate) as url:
        yield b, app, url


def openai_sdk(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="k", **options)


def anthropic_sdk(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="k", **options)


async def off_loop(work: Callable[[], T]) -> T:
    """A synchronous SDK has a thread of its own; the server runs in this loop."""
    return await asyncio.to_thread(work)


async def test_openai_whole_and_streamed() -> None:
    """Chat, completions and Responses, as without a gate; the engine's usage has settled every lease."""
    async with standing() as (b, _app, url), openai.AsyncOpenAI(base_url=url + "/v1", api_key="k") as sdk:
        whole = await sdk.chat.completions.create(model="simulated", messages=ASKED, max_tokens=5)
        assert whole.usage is not None
        assert whole.choices[0].message.content
        stream = await sdk.chat.completions.create(
            model="simulated", messages=ASKED, max_tokens=5, stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        text = await sdk.completions.create(model="simulated", prompt=["one", "two"], max_tokens=5)
        assert len(text.choices) == 2
        assert (await sdk.responses.create(model="m", input="hi")).id == "resp_1"
        events = await sdk.responses.create(model="m", input="hi", stream=True)
        assert [event.type async for event in events][-1] == "response.completed"
        assert b.runtime.statistics().running == 0
        assert b.runtime.statistics().admitted == 5


async def test_anthropic_whole_and_streamed() -> None:
    """Messages, both ways, with the SDK's own stream helper."""
    async with standing() as (b, _app, url), anthropic.AsyncAnthropic(base_url=url, api_key="k") as sdk:
        whole = await sdk.messages.create(model="m", messages=ASKED, max_tokens=9)
        assert whole.usage.output_tokens == 2
        async with sdk.messages.stream(model="m", messages=ASKED, max_tokens=9) as stream:
            assert "".join([text async for text in stream.text_stream]) == "ahoy"
        assert b.runtime.statistics().running == 0


async def test_synchronous_sdks() -> None:
    """The same from threads."""
    async with standing() as (_, _, url):
        with openai_sdk(url) as one, anthropic_sdk(url) as other:
            chat = await off_loop(
                lambda: one.chat.completions.create(model="simulated", messages=ASKED, max_tokens=3)
            )
            assert chat.choices
            message = await off_loop(lambda: other.messages.create(model="m", messages=ASKED, max_tokens=9))
            assert message.id == "msg_1"


async def test_a_refusal_is_a_rate_limit_error_with_its_code_and_fields() -> None:
    """Openai: `.code`, `.type`, the body's further members and the headers."""
    async with standing(tenants=SPENT) as (_, _, url):
        with openai_sdk(url, max_retries=0) as sdk:
            await off_loop(lambda: sdk.responses.create(model="m", input="x"))
            with pytest.raises(openai.RateLimitError) as caught:
                await off_loop(lambda: sdk.responses.create(model="m", input="x"))
        assert caught.value.code == "RATE_LIMIT_EXCEEDED"
        assert caught.value.type == "server_busy"
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["reason"] == "rate_limited"
        assert caught.value.body["scope"] == "tenant"
        assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_a_refusal_in_anthropics_dialect() -> None:
    """`type: error`, `rate_limit_error`, and our members beside."""
    async with standing(tenants=SPENT) as (_, _, url):
        with anthropic_sdk(url, max_retries=0) as sdk:
            await off_loop(lambda: sdk.messages.create(model="m", messages=ASKED, max_tokens=9))
            with pytest.raises(anthropic.RateLimitError) as caught:
                await off_loop(lambda: sdk.messages.create(model="m", messages=ASKED, max_tokens=9))
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["type"] == "error"
        assert caught.value.body["error"]["type"] == "rate_limit_error"
        assert caught.value.body["error"]["reason"] == "rate_limited"


async def test_sdks_retry_as_they_were_told_and_are_admitted_at_that_time() -> None:
    """One refusal, one retry: the told wait is true, so the first retry succeeds."""
    async with standing(tenants=QUOTA) as (b, app, url):
        with openai_sdk(url, max_retries=1) as one, anthropic_sdk(url, max_retries=1) as other:
            await off_loop(lambda: one.responses.create(model="m", input="x"))
            await off_loop(lambda: one.responses.create(model="m", input="x"))
            await off_loop(lambda: other.messages.create(model="m", messages=ASKED, max_tokens=9))
        assert app.attempts == ["0", "1", "1"]
        refused = [event.reason for event in b.events if event.kind.value == "refused"]
        assert refused == ["rate_limited", "rate_limited"]


@pytest.mark.parametrize("max_retries", [2])
async def test_what_can_never_be_is_not_retried(max_retries: int) -> None:
    """L7: 413 for a prompt beyond the cache, 400 beyond the burst; the SDKs ask once."""
    tenants = [{"name": "t", "keys": ["k"], "tokens_per_s": 1, "token_burst": 100}]
    async with standing(Level(capacity_tokens=1000)) as (b, _app, url):
        with openai_sdk(url, max_retries=max_retries) as sdk, pytest.raises(openai.APIStatusError) as caught:
            await off_loop(lambda: sdk.completions.create(model="m", prompt=[1] * 5000, max_tokens=1))
        assert caught.value.status_code == 413
        assert [e.reason for e in b.events if e.kind.value == "refused"] == ["prompt_too_large"]
    async with standing(tenants=tenants) as (b, _app, url):
        with openai_sdk(url, max_retries=max_retries) as sdk, pytest.raises(openai.BadRequestError) as told:
            await off_loop(lambda: sdk.completions.create(model="m", prompt=[1] * 500, max_tokens=1))
        assert isinstance(told.value.body, dict)
        assert told.value.body["reason"] == "cost_above_burst"
        assert [e.reason for e in b.events if e.kind.value == "refused"] == ["cost_above_burst"]


async def test_a_superseded_attempt_is_not_retried() -> None:
    """409 with `x-should-retry: false`: the SDK raises instead of racing its own successor."""
    async with standing() as (b, app, url):
        key = {"Idempotency-Key": '"same"'}
        past = {**key, "Prefer": "wait=0"}
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=3) as sdk:
            first = asyncio.create_task(sdk.responses.create(model="silent", input="x", extra_headers=past))
            await until(lambda: b.runtime.statistics().running == 1)
            second = asyncio.create_task(sdk.responses.create(model="silent", input="x", extra_headers=key))
            with pytest.raises(openai.ConflictError) as caught:
                await first
            second.cancel()
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["reason"] == "superseded"
        assert app.attempts == ["0", "0"]


async def test_an_sdk_that_times_out_leaves_the_queue() -> None:
    """Its own time-out closes the connection; no work is done for it."""
    async with standing(Level(kv_usage=0.97)) as (b, app, url):
        async with openai.AsyncOpenAI(
            base_url=url + "/v1", api_key="k", max_retries=0, timeout=openai.Timeout(30, read=0.5)
        ) as sdk:
            with pytest.raises((openai.APITimeoutError, openai.RateLimitError)):
                await sdk.responses.create(model="m", input="x")
        await until(lambda: b.runtime.statistics().queued == 0)
        assert app.attempts == []
