"""What a request will cost, from its body alone: dialect by dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.readings import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    cost,
    estimate,
    route,
)
from tidegate.asgi.classify import Route
from tidegate.asgi.cost import Cost, unparsed


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("prompt", "ascii_bytes", "token_ids", "prompts", "floor"),
    [
        ("x" * 90, 90, 0, 1, 0),
        (["x" * 90, "y" * 10], 100, 0, 2, 0),
        ([1, 2, 3], 0, 3, 1, 3),
        ([[1, 2, 3], [4]], 0, 4, 2, 3),
        (["x" * 10, [1, 2]], 10, 2, 2, 2),
        ("", 0, 0, 1, 0),
        ([], 0, 0, 1, 0),
        (None, 0, 0, 1, 0),
        ("z" * 51_200, 51_200, 0, 1, 100),
        (" " * 51_200, 51_200, 0, 1, 0),
    ],
)
def test_completion_prompts(prompt: Any, ascii_bytes: int, token_ids: int, prompts: int, floor: int) -> None:
    """A string, a list of strings, token ids, lists of them; blanks alone are certain to be nothing."""
    got = cost(COMPLETIONS, prompt=prompt, max_tokens=5)
    assert (got.ascii_bytes, got.token_ids, got.prompts) == (ascii_bytes, token_ids, prompts)
    assert (got.sequences, got.prompt_tokens_floor, got.max_output_tokens) == (prompts, floor, 5)


def test_chinese_text_is_counted_apart() -> None:
    """Three bytes a character, one to two tokens."""
    got = cost(COMPLETIONS, prompt="你好 hi")
    assert (got.ascii_bytes, got.other_bytes) == (3, 6)
    chinese = cost(COMPLETIONS, prompt="你" * 300).prompt_tokens()
    assert 300 <= chinese <= 600


def test_chat_messages_with_parts_tools_and_media() -> None:
    """Text parts are text, inline media are items, tool schemas are text that templates write out."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    audio = {"type": "input_audio", "input_audio": {"data": "B" * 5000, "format": "wav"}}
    parts = [{"type": "text", "text": "t" * 500}, image, audio]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    got = cost(CHAT, messages=[{"role": "user", "content": parts}], tools=tools)
    assert got.media_items == 2
    assert got.media_bytes > 14_000
    assert 500 + len(json.dumps(tools)) * 0.7 < got.ascii_bytes < 700
    assert got.length_hint == "tools"


def test_media_without_a_type_are_media_too() -> None:
    """Engines accept parts without a type."""
    url = "data:image/png;base64," + "A" * 9000
    got = cost(CHAT, messages=[{"role": "user", "content": [{"image_url": url}]}])
    assert (got.media_items, got.ascii_bytes < 50) == (1, True)


@pytest.mark.parametrize("kind", [["image"], {"image": 1}, 5, None, True])
def test_part_types_of_any_kind_are_walked(kind: object) -> None:
    """A type that is no string names no medium; the part's text counts."""
    got = cost(CHAT, messages=[{"role": "user", "content": [{"type": kind, "text": "t" * 90}]}])
    assert (got.media_items, got.ascii_bytes >= 90) == (0, True)


def test_schemas_that_no_encoder_takes_are_still_counted() -> None:
    """Lone surrogates are legal in JSON text and in Python's reader."""
    got = estimate(b'{"messages":[],"tools":[{"d":"' + b"x" * 90 + b'\\ud800"}]}', CHAT)
    assert (got.unparsed, got.ascii_bytes, got.other_bytes) == (False, 90, 3)


def test_fields_of_media_count_their_items() -> None:
    """Lists, lists of lists, single ones; nothing for none."""
    for images, items in (
        (["a", "b"], 2),
        ([["a", "b"], ["c"]], 3),
        ("a", 1),
        (None, 0),
        ([], 0),
        ([None], 0),
    ):
        assert cost(GENERATE, text="x", image_data=images).media_items == items


def test_anthropic_content() -> None:
    """System text, blocks, images and tool results."""
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 4000}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r" * 200}]},
    ]
    got = cost(MESSAGES, system="s" * 100, max_tokens=7, messages=[{"role": "user", "content": blocks}])
    assert got.media_items == 1
    assert 300 <= got.ascii_bytes < 400
    assert (got.max_output_tokens, got.include_usage) == (7, True)


def test_responses_input() -> None:
    """Items with input_text and input_image, instructions, its own bound, background."""
    item = {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "q" * 50},
            {"type": "input_image", "image_url": "data:,x"},
        ],
    }
    got = cost(RESPONSES, input=[item], instructions="i" * 30, max_output_tokens=9, background=True)
    assert (got.media_items, got.max_output_tokens, got.background, got.prompts) == (1, 9, True, 1)
    assert 80 <= got.ascii_bytes < 110


@pytest.mark.parametrize(
    ("where", "fields", "bound"),
    [
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_completion_tokens": 6}, 6),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 60}, 60),
        (CHAT, {"max_tokens": None}, None),
        (CHAT, {}, None),
        (CHAT, {"max_new_tokens": 1}, None),
        (CHAT, {"max_output_tokens": 1}, None),
        (CHAT, {"sampling_params": {"max_tokens": 1}}, None),
        (COMPLETIONS, {}, 16),
        (COMPLETIONS, {"max_tokens": None}, None),
        (COMPLETIONS, {"max_tokens": 0, "echo": True}, 0),
        (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 8}}, 8),
        (GENERATE, {"text": "x", "sampling_params": [{"max_new_tokens": 8}, {"max_new_tokens": 80}]}, 80),
        (GENERATE, {"inputs": "x", "parameters": {"max_new_tokens": 8}}, 8),
        (route("/inference/v1/generate"), {"token_ids": [1], "sampling_params": {"max_tokens": 4}}, 4),
        (route("/api/generate"), {"prompt": "x", "options": {"num_predict": 3}}, 3),
        (route("/api/generate"), {"prompt": "x", "options": {"num_predict": -1}}, None),
        (EMBEDDINGS, {"input": "x", "max_tokens": 99}, 0),
    ],
)
def test_output_bound(where: Route, fields: dict[str, Any], bound: int | None) -> None:
    """The field that the dialect's servers obey, the larger where they differ, and no other's."""
    assert cost(where, **fields).max_output_tokens == bound


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        ("100", 100),
        (100.0, 100),
        (True, 1),
        (-5, None),
        (1.5, None),
        ("x", None),
        ([], None),
        ({}, None),
        ("1_000", 1000),
        (" 7 ", 7),
        ("7" * 100, None),
        ("1e2", 100),
        (10**30, 10**12),
    ],
)
def test_bound_of_a_wrong_type_is_read_as_servers_read_it(value: object, bound: int | None) -> None:
    """Pydantic takes a number in a string; what it would refuse is no bound."""
    assert cost(CHAT, messages=said("x"), max_tokens=value).max_output_tokens == bound


@pytest.mark.parametrize("literal", [b"1e400", b"NaN", b"-Infinity"])
def test_numbers_that_only_python_reads(literal: bytes) -> None:
    """Such a body reaches the app, so it is priced like any other."""
    got = estimate(b'{"prompt":"xxx","max_tokens":%s,"n":3}' % literal, COMPLETIONS)
    assert (got.unparsed, got.ascii_bytes, got.max_output_tokens, got.sequences) == (False, 3, None, 3)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_encodings_that_only_python_reads(encoding: str) -> None:
    """Python's JSON reader detects them; a gate that does not could be passed unseen."""
    body = json.dumps({"prompt": "x" * 40, "n": 9}).encode(encoding)
    assert (estimate(body, COMPLETIONS).sequences, estimate(body, COMPLETIONS).unparsed) == (9, False)


def test_of_doubled_keys_the_last_counts() -> None:
    """As in the apps' own readers."""
    assert estimate(b'{"prompt":"x","n":1,"n":5}', COMPLETIONS).sequences == 5


UNREADABLE: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"7",
    b"{",
    b"\xff\xfe",
    b"not json",
    b'{"a":',
    b"--x",
]
UNREADABLE += [b"[" * 100_000, b'{"a":' * 5000, b'{"a":"\xe4"}', b"9" * 5000]


@pytest.mark.parametrize("body", UNREADABLE)
def test_bodies_nobody_can_read_cost_their_length(body: bytes) -> None:
    """They go to the app unchanged, which refuses them."""
    assert estimate(body, CHAT) == unparsed(len(body))


@pytest.mark.parametrize(
    ("where", "fields", "sequences"),
    [
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, 6),
        (COMPLETIONS, {"prompt": "a", "n": 2, "best_of": 5}, 5),
        (COMPLETIONS, {"prompt": "a", "n": "4"}, 4),
        (COMPLETIONS, {"prompt": "a", "n": 0}, 1),
        (COMPLETIONS, {"prompt": "a", "n": -3}, 1),
        (COMPLETIONS, {"prompt": "a", "n": None}, 1),
        (CHAT, {"messages": said("a"), "n": 7}, 7),
        (route("/v1/chat/completions/batch"), {"messages": [said("a"), said("b")], "n": 2}, 4),
        (GENERATE, {"text": ["a", "b"], "sampling_params": {"n": 3}}, 6),
        (GENERATE, {"inputs": "a", "parameters": {"best_of": 3}}, 3),
        (EMBEDDINGS, {"input": ["a", "b", "c"]}, 3),
        (route("/rerank"), {"query": "q", "documents": ["a", "b"]}, 2),
        (COMPLETIONS, {"prompt": "a", "n": 10**18}, 10**6),
    ],
)
def test_sequences(where: Route, fields: dict[str, Any], sequences: int) -> None:
    """Prompts times answers side by side, bounded."""
    assert cost(where, **fields).sequences == sequences


def test_the_query_of_a_reranking_is_read_with_every_document() -> None:
    """Cross-encoders see the query once per document."""
    got = cost(route("/v1/rerank"), query="q" * 100, documents=["d" * 10] * 5)
    assert got.ascii_bytes == 550


@pytest.mark.parametrize(
    ("where", "fields", "stream", "usage"),
    [
        (CHAT, {"stream": True}, True, False),
        (CHAT, {"stream": "true", "stream_options": {"include_usage": True}}, True, True),
        (CHAT, {"stream": None}, False, False),
        (MESSAGES, {"stream": True}, True, True),
        (route("/api/chat"), {}, True, True),
        (route("/api/chat"), {"stream": False}, False, True),
        (route("/generate_stream"), {"stream": False}, True, True),
    ],
)
def test_stream_and_usage(where: Route, fields: dict[str, Any], stream: bool, usage: bool) -> None:
    """Whether chunks will come, and whether they will end with the engine's figures."""
    assert (cost(where, **fields).stream, cost(where, **fields).include_usage) == (stream, usage)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({}, ""),
        ({"reasoning_effort": "high"}, "thinking=high"),
        ({"reasoning": {"effort": "low"}}, "thinking=low"),
        ({"reasoning_effort": "x" * 999}, "thinking=other"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "thinking=false"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking=2^11"),
        ({"thinking": {"type": "adaptive"}}, "thinking=true"),
        ({"tools": [{}], "tool_choice": "none"}, ""),
        (
            {"tools": [{}], "response_format": {"type": "json_object"}, "ignore_eos": True},
            "tools,structured,ignore_eos",
        ),
    ],
)
def test_length_hints_have_few_values(fields: dict[str, Any], hint: str) -> None:
    """What the answer's length depends on, in a bounded number of spellings."""
    assert cost(CHAT, messages=said("x"), **fields).length_hint == hint


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_id": "s"}, "s"),
        ({"conversation": {"id": "c"}}, "c"),
        ({"previous_response_id": "resp_1"}, "resp_1"),
        ({"session_params": {"id": "p"}}, "p"),
        ({"session_id": "x" * 500}, None),
        ({"session_id": 5}, None),
        ({}, None),
    ],
)
def test_session(fields: dict[str, Any], session: str | None) -> None:
    """The conversation a request goes on with."""
    assert cost(CHAT, messages=said("x"), **fields).session == session


def test_multipart_upload_is_one_media_item() -> None:
    """Audio is a form; its text fields count, the file is priced per item."""
    lines = [
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + b"\x00" * 5000,
        b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\n2',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper',
        b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue',
        b"--b--\r\n",
    ]
    got = estimate(b"\r\n".join(lines), route("/v1/audio/transcriptions"))
    assert (got.media_items, got.media_bytes, got.sequences, got.model) == (1, 5000, 2, "whisper")
    assert (got.stream, got.ascii_bytes, got.unparsed) == (True, 0, False)


def test_truncation_leaves_little_certain() -> None:
    """The engine was asked to cut the prompt, so its length refuses nothing for good."""
    ids = list(range(5000))
    assert cost(COMPLETIONS, prompt=ids, truncate_prompt_tokens=100).prompt_tokens_floor == 100
    assert cost(COMPLETIONS, prompt=ids, truncate_prompt_tokens=-1).prompt_tokens_floor == 1
    assert cost(RESPONSES, input="z" * 9999, truncation="auto").prompt_tokens_floor == 1


def test_only_what_users_said_is_certain() -> None:
    """Templates may drop earlier thinking, tools and system text."""
    messages = [{"role": "assistant", "content": "a" * 10**5}, *said("u" * 5120)]
    assert cost(CHAT, messages=messages, tools=[{"x": "y" * 10**5}]).prompt_tokens_floor == 10


def test_model_name_can_be_logged() -> None:
    """Lone surrogates are legal JSON and break encoders; long names are cut."""
    got = estimate(b'{"model":"\\ud800' + b"m" * 999 + b'","messages":[]}', CHAT)
    assert got.model is not None
    assert len(got.model.encode("utf-8")) <= 256


def test_learnt_bytes_per_token_scales_text_only() -> None:
    """Token ids are exact, media have their own price."""
    got = Cost(ascii_bytes=300, token_ids=50, media_items=1)
    assert got.prompt_tokens(3.0, 100) == 250
    assert got.prompt_tokens(6.0, 100) == 200


def test_bodies_too_large_for_text_are_taken_for_media() -> None:
    """A 20 MB recording that is not read must not be priced at seven million tokens of text."""
    assert unparsed(4 * 2**20).media_items == 0
    got = unparsed(20 * 2**20)
    assert (got.media_items, got.ascii_bytes, got.media_bytes) == (20, 0, 20 * 2**20)
    assert got.prompt_tokens() < 50_000
