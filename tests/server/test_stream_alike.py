"""Events that differ only in their text are counted many at a time, and exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.asgi import alike
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.readers import Tokens
from tidegate.asgi.stream import OutputCounter


def chat(text: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def anthropic(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def event(payload: object, *, escaped: bool = False, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload, ensure_ascii=escaped)}\n\n".encode()


def counter(dialect: Dialect) -> OutputCounter:
    return OutputCounter(Route(dialect, True, "x"))


def figures(tokens: Tokens) -> tuple[Any, ...]:
    return tuple(getattr(tokens, name) for name in Tokens.__slots__)


TEXTS = st.sampled_from([" word", "a", "\n", '"', "\\", "你好", "", "}]}", 'x"},"y":"z', "\u0001", "é"])
ODD = [
    event(chat("end", usage={"prompt_tokens": 3, "completion_tokens": 9})),
    event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
    b": a comment\n\n",
    b"data: [DONE]\n\n",
    event(chat("x"))[:-1],
    b"\n",
    event(chat("from another stream"))[20:],
    event(chat("two")) + event(chat("at once")),
    b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',
]


@pytest.mark.parametrize("dialect", [Dialect.OPENAI_CHAT, Dialect.ANTHROPIC_MESSAGES, Dialect.UNKNOWN_POST])
@given(
    st.lists(st.lists(TEXTS | st.sampled_from(ODD), min_size=1, max_size=8), max_size=8),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_many_at_a_time_count_like_one_by_one(
    dialect: Dialect, batches: list[list[str | bytes]], escaped: bool
) -> None:
    """Whatever stands between events alike, every figure is the one of the general way."""
    short, general = counter(dialect), counter(dialect)
    general._alike._attempts = 1000  # never learns
    is_anthropic = dialect is Dialect.ANTHROPIC_MESSAGES
    first: list[str | bytes] = ["learn from this"]
    for batch in [first, *batches]:
        chunks: list[bytes] = []
        for item in batch:
            if isinstance(item, bytes):
                chunks.append(item)
            elif is_anthropic:
                chunks.append(event(anthropic(item), escaped=escaped, name="content_block_delta"))
            else:
                chunks.append(event(chat(item), escaped=escaped))
        assert short.feed(*chunks) == general.feed(*chunks)
    assert figures(short._tokens) == figures(general._tokens)
    assert (short.usage, short.finished_by_length) == (general.usage, general.finished_by_length)


@pytest.mark.parametrize("named", [False, True])
def test_plain_events_are_not_parsed_one_by_one(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first event the general way is not asked again."""
    name = "delta" if named else ""
    watch = counter(Dialect.OPENAI_CHAT)
    watch.feed(event(chat("first"), name=name))
    monkeypatch.setattr(OutputCounter, "_event", None)
    assert watch.feed(*[event(chat(" abc"), name=name)] * 100) == 101


def test_what_ends_a_stream_does_not_spoil_what_came_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last events are read one by one, those before them in the same batch are not."""
    watch = counter(Dialect.OPENAI_CHAT)
    watch.feed(event(chat("first")))
    read: list[bytes] = []
    general = OutputCounter._event

    def noted(self: OutputCounter, tokens: Tokens, data: bytes) -> None:
        read.append(data)
        general(self, tokens, data)

    monkeypatch.setattr(OutputCounter, "_event", noted)
    ended = chat("", usage={"prompt_tokens": 3, "completion_tokens": 99})
    watch.feed(*[event(chat(" abc"))] * 50, event(ended), b"data: [DONE]\n\n")
    assert len(read) == 2
    assert watch.usage == (3, 99)


@pytest.mark.parametrize(
    ("dialect", "payload"),
    [
        (Dialect.SGLANG_GENERATE, {"text": "abc", "meta_info": {"id": "a", "completion_tokens": 3}}),
        (Dialect.OPENAI_CHAT, chat("abc", usage={"prompt_tokens": 1, "completion_tokens": 3})),
        (Dialect.OPENAI_CHAT, {"choices": [{"delta": {"content": "abc"}, "token_ids": [1, 2]}]}),
        (Dialect.OPENAI_CHAT, {"choices": [{"delta": {"content": "abc"}, "finish_reason": "length"}]}),
    ],
)
def test_events_that_say_more_than_their_text_are_not_learnt(dialect: Dialect, payload: object) -> None:
    """Running totals, token ids and the end are each their own."""
    watch = counter(dialect)
    watch.feed(event(payload))
    assert not watch._alike._before


def test_a_stream_of_another_kind_is_not_searched_for_ever() -> None:
    """A few attempts, and none on events of absurd size."""
    watch = counter(Dialect.OPENAI_CHAT)
    for _ in range(50):
        watch.feed(event({"content": "nothing we know"}))
    assert watch._alike._attempts == alike._MOST_ATTEMPTS
    watch = counter(Dialect.OPENAI_CHAT)
    watch.feed(event(chat("x" * 10_000)))
    assert not watch._alike._before
