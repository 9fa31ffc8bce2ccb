"""`retry_streams`: a stream that ends before it has generated anything may be asked for again, no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.client.real_server import Line, ScriptApp
from tests.client.stacks import Stack, every_stack
from tidegate_client import RateLimited, RetryPolicy
from tidegate_client.core.decision import Deliver, Failed, Progress, Resend, decide
from tidegate_client.first_event import FirstEvent
from tidegate_client.sdks import openai_client
from tidegate_client.testing import Board, FakeClock

ASKED = RetryPolicy(retry_streams=True)


def event(**body: Any) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def delta(**members: Any) -> bytes:
    """One chunk of OpenAI's chat dialect."""
    return event(choices=[{"index": 0, "delta": members, "finish_reason": None}])


ROLE, TEXT = delta(role="assistant", content=""), delta(content="he")
NOTHING = {
    "comment": b": keepalive\n\n",
    "role": ROLE,
    "usage": event(choices=[], usage={"prompt_tokens": 3}),
    "anthropic start": b"event: message_start\ndata: " + b'{"type": "message_start", "message": {}}\n\n',
    "ping": event(type="ping"),
    "responses api": event(type="response.created", response={}),
    "crlf": b'data: {"choices": []}\r\n\r\n',
    "half an event": b"data: {",
}
GENERATED = {
    "text": TEXT,
    "completion": event(choices=[{"index": 0, "text": "he"}]),
    "tool call": delta(tool_calls=[{"index": 0}]),
    "end": event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
    "anthropic": event(type="content_block_delta", delta={"text": "he"}),
    "responses api": event(type="response.output_text.delta", delta="he"),
    "done": b"data: [DONE]\n\n",
    "unknown": event(anything=1),
    "not json": b"data: hello\n\n",
    "an error of another kind": event(error={"code": "context_length_exceeded", "message": "too long"}),
    "too much of nothing": b":" + b"x" * 70_000,
}
REFUSED = {
    "tidegate": (event(error={"code": "RATE_LIMIT_EXCEEDED", "type": "server_busy", "retry_after": 4}), 429),
    "openai": (event(error={"code": 429, "type": "Too Many Requests"}), 429),
    "anthropic": (event(type="error", error={"type": "overloaded_error", "message": "busy"}), 503),
    "vllm": (event(error={"code": 503, "message": "busy"}), 503),
}


@pytest.mark.parametrize("chunk", NOTHING.values(), ids=NOTHING)
def test_what_commits_to_nothing(chunk: bytes) -> None:
    """Comments, pings, roles, usage and starts leave the call free to be sent again."""
    first = FirstEvent()

    assert not first.feed(chunk)
    assert (first.committed, first.refusal) == (False, None)


@pytest.mark.parametrize("chunk", GENERATED.values(), ids=GENERATED)
def test_what_commits(chunk: bytes) -> None:
    """Text, tool calls, ends and whatever is not understood is the caller's from there on."""
    assert FirstEvent().feed(chunk)


@pytest.mark.parametrize(("chunk", "status"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_told_as_an_event(chunk: bytes, status: int) -> None:
    """A limit or an overload under status 200 counts as the status it would have had."""
    first = FirstEvent()

    assert first.feed(ROLE + chunk + TEXT)
    assert first.refusal is not None
    assert first.refusal[0] == status


@hypothesis.given(
    st.lists(st.sampled_from([*NOTHING.values(), *GENERATED.values()]) | st.binary(max_size=40))
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_bytes_are_held_in_order(chunks: list[bytes]) -> None:
    """Whatever comes: nothing raises, and what was read is what is handed on."""
    first = FirstEvent()
    fed = []
    for chunk in chunks:
        fed.append(chunk)
        if first.feed(chunk):
            break

    assert first.held == fed


class Broken:
    """A body of either colour that sends its pieces and then breaks off, if it is told to."""

    def __init__(self, library: Any, pieces: tuple[bytes, ...], broken: bool) -> None:
        self.library, self.pieces, self.broken, self.closed = library, pieces, broken, False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.broken:
            raise self.library.ReadError("broken off")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


class Streams:
    """A server whose answers are event streams: pieces, and whether they break off after the last."""

    def __init__(self, stack: Stack, *answers: tuple[tuple[bytes, ...], bool], **headers: str) -> None:
        self.stack, self.answers, self.bodies = stack, list(answers), list[Any]()
        self.headers = {"content-type": "text/event-stream"} | headers

    def __call__(self, request: Any) -> Any:
        pieces, broken = self.answers.pop(0)
        kinds = (Broken, self.stack.library.SyncByteStream, self.stack.library.AsyncByteStream)
        body = type("Body", kinds, {})(self.stack.library, pieces, broken)
        self.bodies.append(body)
        return self.stack.library.Response(200, headers=self.headers, stream=body)


async def ask(server: Streams, policy: RetryPolicy = ASKED, clock: FakeClock | None = None) -> bytes:
    """POST once; the whole body."""
    stack = server.stack
    caller = stack.caller(
        stack.library.MockTransport(server), clock or FakeClock(uniform=0.5), Board(), policy=policy
    )
    answer = await caller.request("POST", "http://engine/", json={"stream": True})
    content: bytes = answer.content
    return content


WHOLE = ((ROLE, TEXT, b"data: [DONE]\n\n"), False)


@every_stack
async def test_a_stream_broken_before_its_first_text_is_asked_for_again(stack: Stack) -> None:
    """Role and comment came, then the connection broke: the caller sees one whole answer."""
    server = Streams(stack, ((b": wait\n\n", ROLE), True), WHOLE)

    assert await ask(server) == b"".join(WHOLE[0])
    assert [body.closed for body in server.bodies] == [True, True]


@every_stack
@pytest.mark.parametrize(
    ("policy", "pieces", "headers"),
    [
        (RetryPolicy(), (ROLE,), {}),
        (RetryPolicy(retry_read_errors=True, idempotent=True), (ROLE,), {}),
        (ASKED, (ROLE, TEXT), {}),
        (ASKED, (ROLE,), {"content-type": "application/json"}),
        (RetryPolicy(retry_streams=True, max_attempts=1), (ROLE,), {}),
    ],
    ids=["not asked for", "read errors are another matter", "after text", "no event stream", "no attempts"],
)
async def test_any_other_broken_stream_is_the_callers(
    stack: Stack, policy: RetryPolicy, pieces: tuple[bytes, ...], headers: dict[str, str]
) -> None:
    """The error comes through after one call."""
    server = Streams(stack, (pieces, True), WHOLE, **headers)
    with pytest.raises(stack.library.ReadError):
        await ask(server, policy)

    assert len(server.bodies) == 1


@every_stack
async def test_a_refusal_within_a_stream_is_waited_for(stack: Stack) -> None:
    """An event that says to come back in four seconds is obeyed like a 429 that says so."""
    clock = FakeClock(uniform=0.5)
    server = Streams(stack, ((ROLE, REFUSED["tidegate"][0]), False), WHOLE)

    assert await ask(server, clock=clock) == b"".join(WHOLE[0])
    assert clock.now == 1004.5
    assert server.bodies[0].closed

    over = Streams(stack, ((event(error={"code": 429, "retry_after": 900}),), False))
    with pytest.raises(RateLimited) as caught:
        await ask(over)
    assert caught.value.retry_after == 900


@every_stack
async def test_unasked_a_refusal_within_a_stream_passes(stack: Stack) -> None:
    """Without retry_streams an error event is the caller's, wherever it stands."""
    pieces = (ROLE, REFUSED["tidegate"][0])
    assert await ask(Streams(stack, (pieces, False)), RetryPolicy()) == b"".join(pieces)


def test_the_policy_alone_forbids_it() -> None:
    """The decision is the policy's: a stream that broke is delivered as its error unless it was asked for."""
    progress = Progress(attempt=1, waited_s=0.0, left_s=60.0, may_repeat=True, replayable=True)

    assert isinstance(decide(Failed("stream"), progress, RetryPolicy()), Deliver)
    assert isinstance(decide(Failed("stream"), progress, ASKED), Resend)


@every_stack
async def test_after_text_a_refusal_is_the_callers(stack: Stack) -> None:
    """An error event behind the first text passes through as it is."""
    pieces = (ROLE, TEXT, REFUSED["tidegate"][0])
    assert await ask(Streams(stack, (pieces, False))) == b"".join(pieces)


@every_stack
async def test_the_first_text_is_not_held_back(stack: Stack) -> None:
    """What follows the first text is not read before the caller reads it."""
    read = 0

    class Counting(tuple[bytes, ...]):
        def __iter__(self) -> Iterator[bytes]:
            nonlocal read
            for piece in super().__iter__():
                read += 1
                yield piece

    server = Streams(stack, (Counting((ROLE, TEXT, TEXT, TEXT)), False))
    transport = stack.wrap(
        stack.library.MockTransport(server), timebase=FakeClock(), board=Board(), policy=ASKED
    )
    request = stack.library.Request("POST", "http://engine/", json={})
    answer = transport.handle_request(request) if not stack.is_async else None
    answer = answer or await transport.handle_async_request(request)

    assert read == 2
    content = await answer.aread() if stack.is_async else answer.read()
    assert content == ROLE + TEXT * 3


@every_stack
async def test_the_deadline_ends_a_stream_that_generates_nothing(stack: Stack) -> None:
    """Comments once a second do not keep a call of ten seconds alive."""
    clock = FakeClock(uniform=0.5)

    class Dripping(tuple[bytes, ...]):
        def __iter__(self) -> Iterator[bytes]:
            for piece in super().__iter__():
                clock.advance(1)
                yield piece

    comments = Dripping([b": wait\n\n"] * 60)
    server = Streams(stack, (comments, False))
    with pytest.raises(stack.library.ReadTimeout, match="deadline_s=10"):
        await ask(server, RetryPolicy(retry_streams=True, deadline_s=10), clock)

    assert clock.now <= 1011
    assert server.bodies[0].closed


def test_the_openai_sdk_streams_through_it(engine: ScriptApp) -> None:
    """A real connection breaks after the role; the SDK's stream has every word once."""
    engine.script += [Line(200, {"content-type": "text/event-stream"}, pieces=(ROLE,), broken=True)]
    policy = RetryPolicy(retry_streams=True, backoff_base_s=0.01)
    ask: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with openai_client(policy=policy, base_url=f"{engine.url}/v1", api_key="k") as client:
        words = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**ask)]

    assert words == ["he", "llo"]
    assert len(engine.received) == 2


@every_stack
async def test_an_event_stream_that_ends_without_a_word_is_delivered(stack: Stack) -> None:
    """With `retry_streams`, an end in good order is the server's answer, empty as it is."""
    headers = {"content-type": "text/event-stream"}

    def serve(request: Any) -> Any:
        return stack.library.Response(200, headers=headers, stream=stack.library.ByteStream(b": nothing\n\n"))

    caller = stack.caller(
        stack.library.MockTransport(serve), FakeClock(), policy=RetryPolicy(retry_streams=True)
    )
    assert (await caller.request("POST", "http://engine/")).content == b": nothing\n\n"
