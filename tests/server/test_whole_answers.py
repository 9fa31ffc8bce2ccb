"""Answers in one piece: what the engine reports at their end, in bounded memory."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.counting import OPENAI_USAGE, counter, feed
from tidegate.asgi.classify import Dialect

# --- whole answers -----------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Dialect, object]] = {
    "chat": (
        Dialect.OPENAI_CHAT,
        {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}], "usage": OPENAI_USAGE},
    ),
    "anthropic": (
        Dialect.ANTHROPIC_MESSAGES,
        {
            "content": [{"type": "tool_use", "input": {"usage": {"output_tokens": 999}}}],
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 11, "output_tokens": 5},
        },
    ),
    "responses": (
        Dialect.OPENAI_RESPONSES,
        {
            "tools": [{"parameters": {"usage": {"input_tokens": 0}}}],
            "usage": {"input_tokens": 11, "output_tokens": 5},
            "incomplete_details": {"reason": "max_output_tokens"},
        },
    ),
    "sglang": (
        Dialect.SGLANG_GENERATE,
        {
            "text": "x",
            "meta_info": {"prompt_tokens": 11, "completion_tokens": 5, "finish_reason": {"type": "length"}},
        },
    ),
    "invocations": (
        Dialect.INVOCATIONS,
        {"choices": [{"text": "x", "finish_reason": "length"}], "usage": OPENAI_USAGE},
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
@given(st.lists(st.integers(0, 500), max_size=5))
@settings(max_examples=25, deadline=None)
def test_usage_of_a_whole_answer(name: str, cuts: list[int]) -> None:
    """At the end, from its own place; look-alikes inside tool calls and echoes do not count."""
    dialect, answer = ANSWERS[name]
    watch = counter(dialect)
    feed(watch, json.dumps(answer).encode(), cuts)
    assert watch.usage == (11, 5)
    assert watch.finished_by_length
    assert watch.usage == (11, 5), "reading it twice changes nothing"


def test_sglang_answers_of_a_list_add_up() -> None:
    """A list of prompts is answered by a list."""
    answer = [{"meta_info": {"prompt_tokens": 4, "completion_tokens": n}} for n in (2, 3)]
    watch = counter(Dialect.SGLANG_GENERATE, 2)
    watch.feed(json.dumps(answer).encode())
    assert watch.usage == (None, 5)


def test_usage_at_the_end_of_a_huge_answer() -> None:
    """Embeddings of megabytes keep a bounded tail, and their usage is found there."""
    answer = {
        "data": [{"embedding": [0.25] * 400_000}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 0},
    }
    data = json.dumps(answer | {"id": "x", "tail": {"a": {}}}).encode()
    watch = counter(Dialect.OPENAI_EMBEDDINGS)
    for at in range(0, len(data), 65_536):
        watch.feed(data[at : at + 65_536])
    assert watch.usage == (11, 0)


@pytest.mark.parametrize(
    "body", [b"", b"   ", b"{", b"[1, 2]", b"nonsense", b"\x00\xff\x00", b'{"usage": 5}']
)
@pytest.mark.parametrize("dialect", Dialect)
def test_answers_without_usage(dialect: Dialect, body: bytes) -> None:
    """Nothing is invented."""
    watch = counter(dialect)
    watch.feed(body)
    assert watch.usage is None
    assert not watch.finished_by_length
