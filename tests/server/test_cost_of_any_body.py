"""Any body has a cost, and the short way to it prices like the long one: properties over all JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.readings import COMPLETIONS, cost, estimate
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.cost import Cost, cost_of
from tidegate.asgi.decode import as_bool, as_int, decode_body
from tidegate.asgi.fields import _OF_INTEREST
from tidegate.asgi.plain import ORDINARY, plain_cost

KEYS = ["type", "role", "content", "text", "image_url", "source", "effort", "n", "id", "max_new_tokens"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


FIELD_NAMES = sorted(
    {
        "prompt",
        "messages",
        "input",
        "system",
        "tools",
        "n",
        "best_of",
        "max_tokens",
        "stream",
        "model",
        "thinking",
    }
    | {
        "sampling_params",
        "parameters",
        "options",
        "text",
        "input_ids",
        "image_data",
        "truncation",
        "reasoning",
    }
    | {
        "max_completion_tokens",
        "stream_options",
        "session_params",
        "truncate_prompt_tokens",
        "query",
        "documents",
    }
)


bodies = st.dictionaries(st.sampled_from(FIELD_NAMES), json_values, max_size=8)


routes = st.sampled_from(
    [Route(dialect, generates, "x") for dialect in Dialect for generates in (True, False)]
)


def check(got: Cost) -> None:
    figures = (got.ascii_bytes, got.other_bytes, got.token_ids, got.media_items, got.prompt_tokens_floor)
    assert all(0 <= figure <= 10**12 for figure in figures)
    assert 1 <= got.sequences <= 10**6
    assert got.max_output_tokens is None or 0 <= got.max_output_tokens <= 10**12
    assert got.prompt_tokens() >= 0


@given(bodies, routes)
@settings(max_examples=150, deadline=None)
def test_any_json_has_a_cost(fields: dict[str, Any], where: Route) -> None:
    """Total over JSON: every figure is one the core accepts."""
    check(estimate(json.dumps(fields).encode(), where))


@given(st.binary(max_size=200), routes)
@settings(deadline=None)
def test_any_bytes_have_a_cost(body: bytes, where: Route) -> None:
    """Total over bytes."""
    check(estimate(body, where))


@given(st.text(max_size=50), st.text(max_size=50))
@settings(deadline=None)
def test_more_text_never_costs_less(one: str, more: str) -> None:
    """The estimate grows with the prompt."""
    short, long = cost(COMPLETIONS, prompt=one), cost(COMPLETIONS, prompt=one + more)
    assert long.prompt_tokens() >= short.prompt_tokens()
    assert long.ascii_bytes + long.other_bytes == len((one + more).encode())


@given(json_values)
@settings(deadline=None)
def test_coercions_are_total(value: Any) -> None:
    """Whatever stands where a number or a switch is expected."""
    number = as_int(value)
    assert number is None or abs(number) <= 10**12
    assert as_bool(value) in (True, False)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
@settings(deadline=None)
def test_reads_what_pythons_reader_reads(fields: dict[str, Any]) -> None:
    """No difference to hide behind."""
    data = json.dumps(fields).encode()
    assert json.dumps(decode_body(data)) == json.dumps(json.loads(data))


BODIES = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(
            st.dictionaries(
                st.sampled_from(["role", "content", "name", "tool_calls", "type"]),
                st.sampled_from(["user", "assistant", "hello", " 你好 é ", "x" * 2000, "image", "\ud800", ""])
                | st.none()
                | st.integers()
                | st.lists(st.just({"type": "text", "text": "part"}), max_size=2),
            )
            | st.text(max_size=3),
            max_size=4,
        )
        | st.none()
        | st.text(max_size=3),
        "prompt": st.text(max_size=8) | st.lists(st.integers(0, 9), max_size=3) | st.just("y" * 3000),
        "max_tokens": st.integers(-1, 10**13) | st.none() | st.booleans() | st.just("7") | st.floats(),
        "max_completion_tokens": st.integers(0, 99) | st.none(),
        "stream": st.booleans() | st.none() | st.just("true"),
        "stream_options": st.none() | st.just({"include_usage": True}) | st.just([]),
        "model": st.text(max_size=4) | st.integers() | st.just("m" * 300) | st.just("\ud800"),
        "temperature": st.floats(),
        "n": st.integers(0, 4),
        "tools": st.just([{"type": "function"}]),
        "priority": st.integers(),
        "session_id": st.text(max_size=3),
        "truncate_prompt_tokens": st.integers(0, 5),
    },
)


@given(BODIES, st.sampled_from([Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS, Dialect.COHERE_CHAT]))
@settings(max_examples=300, deadline=None)
def test_the_short_way_prices_like_the_general_one(fields: dict[str, Any], dialect: Dialect) -> None:
    """An ordinary body has one price, whichever way it is read."""
    assert_one_price(json.dumps(fields).encode(), Route(dialect, True, "x"))


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (
            Dialect.OPENAI_CHAT,
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
        ),
        (Dialect.OPENAI_COMPLETIONS, {"prompt": "x", "stream": True}),
    ],
)
def test_an_ordinary_body_goes_the_short_way(dialect: Dialect, fields: dict[str, Any]) -> None:
    """Or there would be none."""
    assert plain_cost(json.dumps(fields).encode(), Route(dialect, True, "x")) is not None


@pytest.mark.parametrize(
    "data",
    [
        b'{"messages": [{"content": "a", "content": "longer"}], "max_tokens": 5, "max_tokens": 7}',
        b'{"messages": [], "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": null, "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"content": "x"}], "stop": "\xff"}',
        b'{"messages": [{"content": "x"}], "max_tokens": 5.0}',
        b'{"messages": [{"content": "x"}], "max_tokens": 5, "max_completion_tokens": 9}',
        b'{"messages": [{"content": "x"}], "max_tokens": null, "max_completion_tokens": 3}',
        b'{"messages": [%s]}' % b",".join([b'{"role":"user","content":"x","name":"n"}'] * 13_000),
        b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"x" * 5_000),
    ],
)
def test_doubled_and_broken_fields_have_one_price_too(data: bytes) -> None:
    """Of doubled keys the last counts; nothing can hide between two ways of reading."""
    assert_one_price(data, Route(Dialect.OPENAI_CHAT, True, "x"))


@pytest.mark.parametrize("bound", [b"", b', "max_tokens": 5', b', "max_tokens": null'])
def test_a_completion_without_a_bound_has_the_servers_own(bound: bytes) -> None:
    """And `null` takes even that away."""
    assert_one_price(b'{"prompt": "x"%s}' % bound, Route(Dialect.OPENAI_COMPLETIONS, True, "x"))


def assert_one_price(data: bytes, route: Route) -> None:
    plain, fields = plain_cost(data, route), decode_body(data)
    assert plain is None or (fields is not None and plain == cost_of(fields, route))


def test_no_ordinary_field_is_of_interest_to_a_policy() -> None:
    """Ordinary bodies are not shown to it."""
    assert ORDINARY.isdisjoint(_OF_INTEREST)
