"""Comments on queued streams: off by default, true when on, and errors that every SDK can still read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import httpx
import openai
import pytest

from tests.server.bed import App, Level, Raw, bed, until
from tests.serving import serving
from tidegate import Reading
from tidegate.asgi.classify import Dialect
from tidegate.asgi.keepalive import KeptStream, error_event
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.telemetry.events import EventKind

STREAM = {"prompt": "hello", "max_tokens": 16, "stream": True}
ON = {"after_s": 0.05, "interval_s": 0.05}
EVENTS = [b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', b"data: [DONE]\n\n"]


class EventApp(App):
    """Answers an event stream."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = list(EVENTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [(b"content-type", b"text/event-stream")]}
            await send(message)

        await super().__call__(scope, receive, typed)


def raw_stream(gate: object, **headers: str) -> Raw:
    return Raw(gate, json.dumps(STREAM).encode(), headers)


def text(raw: Raw) -> str:
    return b"".join(m.get("body", b"") for m in raw.sent if m["type"] == "http.response.body").decode()


async def test_off_by_default_a_queued_stream_is_silent_and_keeps_its_status() -> None:
    """Q13: no 200 before admission."""
    classes = [{"name": "standard", "max_wait_s": 0.3}]
    async with bed(EventApp(), Level(kv_usage=0.97), classes=classes) as b:
        raw = raw_stream(b.gate)
        await raw.task
        assert raw.status == 429


async def test_comments_tell_place_and_wait_and_then_the_apps_events_follow() -> None:
    """One start, 200, an event stream; after the comments the very bytes of the app."""
    async with bed(EventApp(), Level(kv_usage=0.97), keepalive=ON) as b:
        first, second = raw_stream(b.gate), raw_stream(b.gate)
        await until(lambda: text(second).count(": queued") >= 2)
        start = second.sent[0]
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-type"].startswith(b"text/event-stream")
        assert ": queued position=1" in text(first)
        assert ": queued position=2" in text(second)
        b.level.kv_usage = 0.0
        await second.task
        await first.task
        assert [m["type"] for m in second.sent].count("http.response.start") == 1
        assert text(second).endswith(b"".join(EVENTS).decode())
        assert second.sent[-1].get("more_body", False) is False


async def test_who_is_admitted_before_the_first_comment_gets_the_apps_own_start() -> None:
    """Its headers, its status, and our Server-Timing."""
    async with bed(EventApp(), keepalive=ON) as b:
        raw = raw_stream(b.gate)
        await raw.task
        assert any(name == b"server-timing" for name, _ in raw.sent[0]["headers"])
        assert text(raw) == b"".join(EVENTS).decode()


async def test_a_request_that_does_not_stream_is_left_alone() -> None:
    """Its answer has one status, which only the app knows."""
    async with bed(level=Level(kv_usage=0.97), keepalive=ON) as b:
        raw = Raw(b.gate, b'{"prompt": "x"}')
        await until(lambda: b.runtime.statistics().queued == 1)
        b.level.kv_usage = 0.0
        await raw.task
        assert raw.sent[0]["type"] == "http.response.start"
        assert text(raw) == b.app.chunks[0].decode()


async def test_a_refusal_after_the_first_comment_is_an_error_event() -> None:
    """With all that the 429 would have said; counted as a refusal."""
    classes = [{"name": "standard", "max_wait_s": 1.5}]
    async with bed(EventApp(), Level(kv_usage=0.97), keepalive=ON, classes=classes) as b:
        raw = raw_stream(b.gate)
        await raw.task
        assert raw.status == 200
        data = [line[6:] for line in text(raw).splitlines() if line.startswith("data: ")]
        error = json.loads(data[0])["error"]
        assert error["reason"] in ("wait_expired", "wait_too_long")
        assert error["retry_after"] >= 1
        assert data[-1] == "[DONE]"
        assert raw.sent[-1].get("more_body", False) is False
        assert b.count(EventKind.REFUSED) == 1
        assert b.app.started == 0


async def test_an_app_that_answers_an_error_is_told_in_the_stream() -> None:
    """The status is spent, so the app's own error goes out as an event."""
    app = App()
    app.status, app.chunks = 400, [b'{"error": {"message": ', b'"no such model", "code": 404}}']
    async with bed(app, Level(kv_usage=0.97), keepalive=ON) as b:
        raw = raw_stream(b.gate)
        await until(lambda: ": queued" in text(raw))
        b.level.kv_usage = 0.0
        await raw.task
        data = [line[6:] for line in text(raw).splitlines() if line.startswith("data: ")]
        assert json.loads(data[0])["error"]["message"] == "no such model"
        assert b.runtime.statistics().running == 0


class Broken(App):
    """Waits for its turn like any app, and then gives no answer."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.failure = error

    async def _answer(self, receive: Receive, send: Send) -> None:
        if self.started > 1:
            if self.failure is not None:
                raise self.failure
            return
        await super()._answer(receive, send)


@pytest.mark.parametrize("error", [RuntimeError("the app's own"), None], ids=["raises", "returns"])
async def test_an_app_that_gives_no_answer_is_told_in_the_stream(error: Exception | None) -> None:
    """Nobody outside can say it any more; its exception goes on outwards all the same."""
    async with bed(Broken(error), keepalive=ON, default_tenant={"max_concurrency": 1}) as b:
        b.app.go.clear()
        first = Raw(b.gate)
        await until(lambda: b.app.running == 1)
        raw = raw_stream(b.gate)
        await until(lambda: "position" in text(raw))
        b.app.go.set()
        await first.task
        await asyncio.wait({raw.task})
        assert raw.task.exception() is error
        assert raw.status == 200
        assert '"code":500' in text(raw)
        assert text(raw).endswith("data: [DONE]\n\n")
        assert not raw.sent[-1].get("more_body")


async def test_who_hangs_up_between_comments_leaves_nothing_behind() -> None:
    """The queue empties, the task that tells ends."""
    async with bed(EventApp(), Level(kv_usage=0.97), keepalive=ON) as b:
        raw = raw_stream(b.gate)
        await until(lambda: ": queued" in text(raw))
        raw.leave()
        await raw.task
        assert b.runtime.statistics().queued == 0
        assert b.app.started == 0
        told = len(raw.sent)
        await until(lambda: b.count(EventKind.LEFT) == 1)
        assert len(raw.sent) == told


async def test_draining_ends_a_kept_stream_with_an_error_event() -> None:
    """The operator stops the server while callers hear of their place."""
    async with bed(EventApp(), Level(kv_usage=0.97), keepalive=ON) as b:
        raw = raw_stream(b.gate)
        await until(lambda: ": queued" in text(raw))
        b.runtime.drain()
        await raw.task
        assert '"reason":"draining"' in text(raw)


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (503, [(b"content-type", b"text/html")], "status 503"),
        (200, [(b"content-type", b"application/json")], "no event stream"),
        (200, [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")], "no event stream"),
    ],
)
async def test_what_cannot_be_passed_on_is_told(
    status: int, headers: list[tuple[bytes, bytes]], told: str
) -> None:
    """Whatever the app answers, the stream stays one."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    kept = KeptStream(send, Dialect.OPENAI_CHAT, [])
    await kept.tell(1, None)
    await kept.send({"type": "http.response.start", "status": status, "headers": headers})
    await kept.send({"type": "http.response.body", "body": b"<html>", "more_body": False})
    assert told in sent[-1]["body"].decode()
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    "dialect", [Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES, Dialect.ANTHROPIC_MESSAGES]
)
def test_error_events_are_one_event_each(dialect: Dialect) -> None:
    """A body holds no line break, so it is one data line."""
    event = error_event(b'{"error":{"message":"m","code":"C","type":"t"}}', dialect).decode()
    lines = [line for line in event.splitlines() if line.startswith("data: {")]
    assert len(lines) == 1
    assert json.loads(lines[0][6:])["error"]["message"] == "m"


class Busy(Level):
    """An engine that others keep full. Its level moves: one that stands still is frozen once an SDK has taken
    five seconds to start, and lets a request pass.
    """

    async def read(self) -> Reading:
        self.kv_usage = 0.97 if self.kv_usage > 0.97 else 0.98
        return await super().read()


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """A server that refuses after the first comment."""
    classes = [{"name": "standard", "max_wait_s": 0.5}]
    async with (
        bed(EventApp(), Busy(), keepalive=ON, classes=classes) as b,
        serving(b.gate) as url,
    ):
        yield url


async def test_the_openai_sdk_skips_the_comments_and_raises_the_error_event() -> None:
    """On chat completions, over a real socket."""
    async with refusing() as url, openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError, match="busy"):
            [chunk async for chunk in stream]


async def test_the_openai_sdk_raises_the_error_event_of_a_response() -> None:
    """On Responses, whose events have names."""
    async with refusing() as url, openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as sdk:
        events = await sdk.responses.create(model="m", input="hi", stream=True)
        with pytest.raises(openai.APIError, match="busy"):
            [event async for event in events]


async def test_the_anthropic_sdk_skips_the_comments_and_raises_the_error_event() -> None:
    """On messages."""
    async with refusing() as url, anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as sdk:
        messages = await sdk.messages.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=9, stream=True
        )
        with pytest.raises(anthropic.APIStatusError, match="busy"):
            [event async for event in messages]


async def test_a_page_may_read_the_kept_stream() -> None:
    """CORS headers stand on the start that is ours."""
    cors = {"allow_origins": ["https://chat.example"]}
    async with bed(EventApp(), Level(kv_usage=0.97), keepalive=ON, cors=cors) as b:
        raw = raw_stream(b.gate, origin="https://chat.example", prefer="wait=20")
        await until(lambda: raw.status is not None)
        headers = dict(raw.sent[0]["headers"])
        assert headers[b"access-control-allow-origin"] == b"https://chat.example"
        assert headers[b"preference-applied"] == b"wait=20"
        raw.leave()
        await raw.task


async def test_a_reader_over_http_sees_comments_as_they_are_sent() -> None:
    """Not held back by the server."""
    async with (
        bed(EventApp(), Level(kv_usage=0.97), keepalive=ON) as b,
        serving(b.gate) as url,
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", url + "/v1/completions", json=STREAM) as response,
    ):
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith(": queued position=1")
        b.level.kv_usage = 0.0
        assert "data: [DONE]" in [line async for line in lines]
