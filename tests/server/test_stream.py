"""Counting streams as they go by: every dialect, cut anywhere, in bounded memory."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.counting import DONE, OPENAI_USAGE, chat, counter, feed, sse
from tidegate.asgi.classify import Dialect
from tidegate.asgi.readers import reader_for

STREAMS: dict[str, tuple[Dialect, int, bytes]] = {
    "chat": (
        Dialect.OPENAI_CHAT,
        1,
        sse(
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            chat("Hel"),
            {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"arguments": '{"a"'}}]}}]},
            chat("你好"),
            chat("", finish_reason="length"),
            {"choices": [], "usage": OPENAI_USAGE},
        )
        + DONE,
    ),
    "completions": (
        Dialect.OPENAI_COMPLETIONS,
        1,
        sse(
            *[{"choices": [{"index": 0, "text": f" t{n}", "finish_reason": None}]} for n in range(4)],
            {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": None},
            {"choices": [], "usage": OPENAI_USAGE},
        )
        + DONE,
    ),
    "anthropic": (
        Dialect.ANTHROPIC_MESSAGES,
        1,
        b"event: message_start\n"
        + sse({"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 1}}})
        + sse(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *[
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ab"}}
                for _ in range(3)
            ],
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        ),
    ),
    "responses": (
        Dialect.OPENAI_RESPONSES,
        1,
        b"event: response.created\n"
        + sse({"type": "response.created", "response": {"status": "in_progress", "usage": None}})
        + sse(
            *[{"type": "response.output_text.delta", "delta": "ab"} for _ in range(3)],
            {"type": "response.function_call_arguments.delta", "delta": "{}"},
            {
                "type": "response.incomplete",
                "response": {
                    "usage": {"input_tokens": 11, "output_tokens": 5},
                    "incomplete_details": {"reason": "max_output_tokens"},
                },
            },
        ),
    ),
    "sglang": (
        Dialect.SGLANG_GENERATE,
        1,
        sse(
            *[
                {"text": "x" * n, "meta_info": {"id": "a", "prompt_tokens": 11, "completion_tokens": n}}
                for n in range(1, 5)
            ],
            {
                "text": "xxxxx",
                "meta_info": {
                    "id": "a",
                    "prompt_tokens": 11,
                    "completion_tokens": 5,
                    "finish_reason": {"type": "length", "length": 5},
                },
            },
        )
        + DONE,
    ),
    "cohere": (
        Dialect.COHERE_CHAT,
        1,
        sse(
            {"type": "message-start", "delta": {"message": {"role": "assistant"}}},
            *[{"type": "content-delta", "delta": {"message": {"content": {"text": "ab"}}}} for _ in range(4)],
            {
                "type": "message-end",
                "delta": {
                    "finish_reason": "MAX_TOKENS",
                    "usage": {"tokens": {"input_tokens": 11.0, "output_tokens": 5.0}},
                },
            },
        ),
    ),
    "ollama": (
        Dialect.OLLAMA,
        1,
        b"".join(
            json.dumps(line).encode() + b"\n"
            for line in (
                *[{"message": {"content": "ab"}, "done": False} for _ in range(4)],
                {"done": True, "done_reason": "length", "prompt_eval_count": 11, "eval_count": 5},
            )
        ),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
@given(st.lists(st.integers(0, 5000), max_size=12))
@settings(max_examples=25, deadline=None)
def test_cuts_do_not_matter(name: str, cuts: list[int]) -> None:
    """However the server cuts the bytes, usage, end and estimate are the same, and the estimate rises."""
    dialect, sequences, data = STREAMS[name]
    watch = counter(dialect, sequences)
    seen = feed(watch, data, cuts)
    assert watch.usage == (11, 5)
    assert watch.finished_by_length
    assert watch.output_tokens == 5
    assert all(later >= earlier for earlier, later in itertools.pairwise(seen))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_all_line_endings_of_event_streams(name: str, ending: bytes) -> None:
    """The standard allows CRLF and a lone CR."""
    dialect, sequences, data = STREAMS[name]
    watch = counter(dialect, sequences)
    for at in range(0, len(data), 7):
        watch.feed(data[at : at + 7].replace(b"\n", ending))
    assert watch.usage == (11, 5)


def test_one_token_events_are_counted_one_by_one() -> None:
    """Without any usage the events with text are the count; the role chunk is none."""
    watch = counter()
    watch.feed(sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    assert [watch.feed(sse(chat("ab"))) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert watch.usage is None


@pytest.mark.parametrize("common", [True, False])
def test_a_token_that_shows_no_text_counts_and_the_opening_and_the_end_do_not(common: bool) -> None:
    """Half a character is a token of the KV cache; its text comes with the other half."""
    more: dict[str, Any] = {} if common else {"logprobs": {}, "token_ids": None, "message": {}}
    watch = counter()
    watch.feed(sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, **more}]}))
    assert watch.output_tokens == 0
    watch.feed(sse(chat("", **more), chat("", **more), chat("ab", **more)))
    assert watch.output_tokens == 3
    watch.feed(sse(chat("", finish_reason="stop")))
    assert watch.output_tokens == 3


def test_several_tokens_an_event_are_seen_by_their_bytes() -> None:
    """Speculative decoding and stream intervals put many tokens into one event."""
    assert 60 <= counter().feed(sse(chat("word " * 60))) <= 75
    assert counter().feed(sse(chat("你好" * 30))) >= 40


def test_token_ids_are_exact() -> None:
    """Where the engine sends ids, they are the count."""
    watch = counter()
    assert watch.feed(sse(chat("x", token_ids=[1, 2, 3]))) == 3
    assert counter(Dialect.VLLM_TOKENS).feed(sse({"choices": [{"token_ids": [1, 2]}]})) == 2


def test_sequences_side_by_side_add_up() -> None:
    """`n` answers come interleaved; a choice's own running usage is not the whole."""
    watch = counter(sequences=2)
    for index in (0, 1, 0, 1):
        event = chat("ab", index)
        event["usage"] = {"prompt_tokens": 11, "completion_tokens": 1}
        watch.feed(sse(event))
    assert (watch.output_tokens, watch.usage) == (4, None)
    watch.feed(sse({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 9}}))
    assert (watch.output_tokens, watch.usage) == (9, (11, 9))


def test_running_usage_of_a_single_sequence_is_the_count() -> None:
    """`continuous_usage_stats` is the engine's own progress."""
    watch = counter()
    event = chat("ab")
    event["usage"] = {"prompt_tokens": 11, "completion_tokens": 7}
    assert watch.feed(sse(event)) == 7


def test_sglang_sequences_are_summed_by_index() -> None:
    """Each event repeats its own sequence's total; prompts of several sequences are not told apart."""
    watch = counter(Dialect.SGLANG_GENERATE, 2)
    for index, total in ((0, 1), (1, 1), (0, 2), (1, 5)):
        meta = {"id": f"r{index}", "prompt_tokens": 9, "completion_tokens": total}
        watch.feed(sse({"index": index, "meta_info": meta}))
    assert (watch.output_tokens, watch.usage) == (7, (None, 7))


def test_tgi_tokens() -> None:
    """One token an event, details with the last."""
    watch = counter(Dialect.TGI_GENERATE)
    for _ in range(3):
        watch.feed(
            b"data:" + json.dumps({"token": {"id": 1, "text": "a"}, "details": None}).encode() + b"\n\n"
        )
    assert watch.output_tokens == 3
    last = {"token": {"text": "b"}, "details": {"generated_tokens": 4, "finish_reason": "length"}}
    watch.feed(sse(last))
    assert (watch.usage, watch.finished_by_length) == ((None, 4), True)


def test_what_a_cache_served_counts_as_prompt() -> None:
    """Anthropic reports it apart, but it fills the KV cache all the same."""
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 7,
        "output_tokens": 2,
    }
    watch = counter(Dialect.ANTHROPIC_MESSAGES)
    watch.feed(json.dumps({"type": "message", "content": [], "usage": usage}).encode())
    assert watch.usage == (42, 2)


@pytest.mark.parametrize("start", [b"data: ", b"{", b"x", b"data: \n"])
@pytest.mark.parametrize("piece", [b"x" * 65_536, b"\n" * 65_536, b"data: " * 8192])
def test_memory_is_bounded(start: bytes, piece: bytes) -> None:
    """A line or a document without an end holds a few megabytes at most."""
    watch = counter()
    watch.feed(start)
    tracemalloc.start()
    for _ in range(200):
        watch.feed(piece)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4 * 1024 * 1024


def test_counting_goes_on_after_an_absurd_line() -> None:
    """The line is skipped, what follows is read."""
    watch = counter()
    watch.feed(b"data: " + b"x" * (2 * 1024 * 1024))
    watch.feed(b"still the same line\n\n")
    assert watch.feed(sse(chat("a"))) == 1


KEYS = ["choices", "delta", "content", "usage", "type", "message", "meta_info", "index", "token", "details"]
KEYS += ["completion_tokens", "output_tokens", "finish_reason", "tool_calls", "function", "response", "done"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(list(Dialect)), st.integers(1, 3), st.lists(json_values, max_size=4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_json_is_counted_without_an_error(
    dialect: Dialect, sequences: int, events: list[Any], streamed: bool
) -> None:
    """Whatever an app sends, as events or as one answer."""
    watch = counter(dialect, sequences)
    tokens = watch.feed(sse(*events) if streamed else json.dumps(events).encode())
    assert tokens >= 0
    usage = watch.usage
    assert usage is None or all(figure is None or figure >= 0 for figure in usage)


@given(st.sampled_from(list(Dialect)), st.lists(st.binary(max_size=40), max_size=8))
@settings(deadline=None)
def test_any_bytes_are_counted_without_an_error(dialect: Dialect, chunks: list[bytes]) -> None:
    """Binary audio, broken encodings, anything."""
    watch = counter(dialect)
    for chunk in chunks:
        assert watch.feed(chunk) >= 0
    assert watch.finished_by_length in (True, False)


FORMS: list[dict[str, Any]] = [
    chat("ab"),
    chat("你好"),
    chat(""),
    chat(None),
    chat("ab", finish_reason="length"),
    chat("ab", token_ids=[1, 2]),
    {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"delta": {"reasoning": "hm", "content": "x"}}]},
    {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
    {"choices": [{"delta": {"refusal": "no"}}]},
    {"choices": [{"delta": {"content": 5}}]},
    {"choices": [{"delta": {"content": "a"}, "text": "b"}]},
    {"choices": [{"text": "ab"}]},
    {"choices": [{"message": {"content": "ab"}}]},
    {"choices": [chat("a")["choices"][0], chat("b")["choices"][0]]},
    {"choices": [{"delta": {"content": "ab"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 9}},
    {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}},
    {"choices": [{}]},
    {"choices": None},
    {"choices": "x"},
    {"delta": "transcript"},
]


@pytest.mark.parametrize("event", FORMS, ids=repr)
@pytest.mark.parametrize("sequences", [1, 2])
def test_the_short_way_counts_like_the_long_one(event: dict[str, Any], sequences: int) -> None:
    """An event alone in its chunk is read by the fast reader or, if that declines, by the general one."""
    fast, general = counter(sequences=sequences), counter(Dialect.UNKNOWN_POST, sequences)
    for watch in (fast, general):
        watch._recognise(b"data:")
    general._read = reader_for(Dialect.OPENAI_CHAT)
    assert fast.feed(sse(event)) == general.feed(sse(event))
    assert (fast.usage, fast.finished_by_length) == (general.usage, general.finished_by_length)
