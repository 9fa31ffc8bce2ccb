"""Signs of life while queued: the status is spent, so everything later is told in the stream."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from pydantic import ValidationError

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.keepalive import EarlyAnswer, KeepAliveOptions, may_keep_alive
from tidegate.asgi.replies import ReplyOptions, build_reply
from tidegate.asgi.stream import OutputCounter
from tidegate.core.decisions import Reason, Refuse

CHAT = Route(Dialect.OPENAI_CHAT, True, "/chat/completions")
MESSAGES = Route(Dialect.ANTHROPIC_MESSAGES, True, "/v1/messages")
EVENT = b'data: {"choices":[{"delta":{"content":"hi"},"index":0}]}\n\n'


class Wire:
    """What the server was given to send."""

    def __init__(self, route: Route = CHAT) -> None:
        self.sent: list[Any] = []
        self.answer = EarlyAnswer(self._send, route, [(b"vary", b"Origin")])

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def app(self, status: int, *bodies: bytes) -> None:
        start = {"type": "http.response.start", "status": status, "headers": [(b"x-app", b"1")]}
        await self.answer.send(start)
        for number, body in enumerate(bodies):
            more = number < len(bodies) - 1
            await self.answer.send({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    def starts(self) -> list[Any]:
        return [message for message in self.sent if message["type"] == "http.response.start"]


def refusal(route: Route) -> Any:
    refuse = Refuse(ticket=1, reason=Reason.WAIT_EXPIRED, scope="class", retry_after_s=2.5)
    return build_reply(refuse, {"type": "http", "headers": []}, route, ReplyOptions(), 0.0)


async def test_without_a_beat_everything_passes_untouched() -> None:
    """Status, headers and all."""
    wire = Wire()
    await wire.app(503, b"down")
    assert [message.get("status") for message in wire.starts()] == [503]
    assert wire.body == b"down"


async def test_beats_are_comments_that_clients_ignore() -> None:
    """One start, then position and wait; then the app's events, start dropped."""
    wire = Wire()
    await wire.answer.beat(3, 12.4)
    await wire.answer.beat(1, None)
    await wire.app(200, EVENT, b"data: [DONE]\n\n")
    [start] = wire.starts()
    assert start["status"] == 200
    assert dict(start["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert (b"vary", b"Origin") in start["headers"]
    comments = b": tidegate queued position=3 wait=12\n\n: tidegate queued position=1 wait=unknown\n\n"
    assert wire.body == comments + EVENT + b"data: [DONE]\n\n"
    assert wire.sent[-1]["more_body"] is False
    counter = OutputCounter(CHAT)
    assert counter.feed(wire.body) == 1


@pytest.mark.parametrize("route", [CHAT, MESSAGES])
async def test_a_refusal_after_a_beat_is_an_event(route: Route) -> None:
    """With the same reason and wait in it, and the stream ends."""
    wire = Wire(route)
    await wire.answer.beat(1, 1.0)
    await wire.answer.refuse(refusal(route))
    lines = wire.body.decode().splitlines()
    error = json.loads(next(line for line in lines if line.startswith("data: {"))[6:])["error"]
    assert (error["reason"], error["retry_after"]) == ("wait_expired", 3)
    assert ("event: error" in lines) is (route is MESSAGES)
    assert wire.sent[-1]["more_body"] is False
    assert len(wire.starts()) == 1


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        ([b'{"error": {"message": "no such model"}}'], "no such model"),
        ([b'{"error": {"mess', b'age": "no such model"}}'], "no such model"),
        ([b"plain\nwords"], "plain\nwords"),
        ([b"\xff"], "\ufffd"),
        ([b""], ""),
        ([b'["x"]'], ["x"]),
    ],
)
async def test_an_error_of_the_app_after_a_beat_is_an_event(bodies: list[bytes], message: object) -> None:
    """Its status can no longer be sent; its body is."""
    wire = Wire()
    await wire.answer.beat(1, 1.0)
    await wire.app(404, *bodies)
    [line] = [line for line in wire.body.decode().splitlines() if line.startswith("data: {")]
    assert json.loads(line[6:])["error"]["message"] == message
    assert wire.sent[-1]["more_body"] is False


async def test_an_endless_error_is_cut() -> None:
    """Memory stays bounded."""
    wire = Wire()
    await wire.answer.beat(1, 1.0)
    await wire.app(500, *[b"x" * 10_000] * 100)
    assert len(wire.body) < 100_000


async def test_the_openai_sdk_raises_the_refusal() -> None:
    """The real SDK turns the event into its error."""
    wire = Wire()
    await wire.answer.beat(1, 1.0)
    await wire.answer.refuse(refusal(CHAT))
    start = wire.starts()[0]
    reply = httpx2.Response(200, headers=start["headers"], content=wire.body)
    client = openai.OpenAI(
        api_key="k",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(lambda request: reply)),
    )
    with client, pytest.raises(openai.APIError, match="busy"):
        list(
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], stream=True
            )
        )


@pytest.mark.parametrize(
    ("dialect", "stream", "may"),
    [
        (Dialect.OPENAI_CHAT, True, True),
        (Dialect.OPENAI_CHAT, False, False),
        (Dialect.OLLAMA, True, False),
        (Dialect.OPENAI_AUDIO, True, False),
        (Dialect.INVOCATIONS, True, False),
    ],
)
def test_only_event_streams_may_begin_early(dialect: Dialect, stream: bool, may: bool) -> None:
    """A comment would break any other answer."""
    assert may_keep_alive(Route(dialect, True, "x"), stream) is may


def test_off_by_default_and_checked() -> None:
    """The status of a refusal is worth more than a sign of life."""
    assert KeepAliveOptions().after_s is None
    with pytest.raises(ValidationError):
        KeepAliveOptions(after_s=0)
