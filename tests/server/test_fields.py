"""Fields that go round the gate: cut, bounded or refused, and nothing else touched."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.server.bed import Level, bed
from tests.server.readings import estimate
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.examine import OFF_LOOP_BYTES, Threads, examine
from tidegate.asgi.fields import FieldPolicy, FieldProblem
from tidegate.asgi.rewrite import Change, rewrite

CHAT = Route(Dialect.OPENAI_CHAT, True, "/chat/completions")
COMPLETIONS = Route(Dialect.OPENAI_COMPLETIONS, True, "/completions")
GENERATE = Route(Dialect.SGLANG_GENERATE, True, "/generate")
LONG = "x" * 30_000


def after(body: bytes, route: Route = COMPLETIONS, **policy: Any) -> bytes:
    """The body that the app gets."""
    return examine(body, route, FieldPolicy(**policy)).data or body


def problem(fields: dict[str, Any], route: Route = COMPLETIONS, **policy: Any) -> FieldProblem:
    with pytest.raises(FieldProblem) as caught:
        examine(json.dumps(fields).encode(), route, FieldPolicy(**policy))
    return caught.value


@pytest.mark.parametrize("priority", [-100, 100, "-5", 0, 1.0, True, [1], {}])
def test_engine_priority_is_dropped_by_default(priority: object) -> None:
    """In vLLM a smaller number goes first, in SGLang a larger: neither is for callers (case Q11)."""
    body = json.dumps({"prompt": "x", "priority": priority, "n": 1}).encode()
    assert json.loads(after(body)) == {"prompt": "x", "n": 1}


def test_everything_else_keeps_its_bytes() -> None:
    """Odd spacing, escapes and number formats in other fields arrive as they were sent."""
    body = b'{"prompt": "\\u00e9\\/ x",  "temperature":1.0e-0, "priority":5, "y":[1 ,2.50]}'
    assert after(body) == b'{"prompt":"\\u00e9\\/ x","temperature":1.0e-0,"y":[1 ,2.50]}'


@pytest.mark.parametrize("body", [b'{"prompt":"x"}', b'{"prompt":"x","priority":null}', b"junk", b"[1]", b""])
def test_without_need_nothing_is_rewritten(body: bytes) -> None:
    """Exact replay is the rule."""
    assert examine(body, COMPLETIONS, FieldPolicy()).data is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32-be"])
def test_no_encoding_hides_a_field(encoding: str) -> None:
    """What Python's JSON reader would understand is understood and cut here."""
    body = json.dumps({"prompt": "é", "priority": -1}).encode(encoding)
    assert json.loads(after(body)) == {"prompt": "é"}


def test_nan_does_not_hide_a_field() -> None:
    """Python's reader takes NaN; so does the rewritten body."""
    got = json.loads(after(b'{"temperature":NaN,"priority":-1,"prompt":"\\ud800"}'))
    assert set(got) == {"temperature", "prompt"}
    assert got["prompt"] == "\ud800"


def test_doubled_priority_is_dropped_whole() -> None:
    """Both of them."""
    assert json.loads(after(b'{"priority":1,"prompt":"x","priority":2}')) == {"prompt": "x"}


def test_priority_can_be_refused_or_allowed() -> None:
    """As the operator likes."""
    assert problem({"prompt": "x", "priority": 1}, priority="reject").param == "priority"
    body = b'{"priority":1}'
    assert examine(body, COMPLETIONS, FieldPolicy(priority="allow")).data is None


def test_priority_headers_go_the_same_way() -> None:
    """vLLM and SGLang take it from a header as well."""
    plain = [(b"accept", b"*/*")]
    for name in (b"x-vllm-priority", b"X-Override-Priority"):
        given_lines = [*plain, (name, b"-9")]
        assert FieldPolicy().headers(given_lines) == plain
        assert FieldPolicy(priority="allow").headers(given_lines) is None
        with pytest.raises(FieldProblem):
            FieldPolicy(priority="reject").headers(given_lines)
    assert FieldPolicy().headers(plain) is None


@pytest.mark.parametrize(
    ("fields", "route", "param"),
    [
        ({"prompt": LONG, "prompt_logprobs": 1}, COMPLETIONS, "prompt_logprobs"),
        ({"prompt": LONG, "prompt_logprobs": 0}, COMPLETIONS, "prompt_logprobs"),
        ({"prompt": LONG, "echo": True, "logprobs": 0}, COMPLETIONS, "echo"),
        ({"prompt": LONG, "echo": "true", "logprobs": 5}, COMPLETIONS, "echo"),
        ({"messages": [{"role": "user", "content": LONG}], "echo": True, "top_logprobs": 2}, CHAT, "echo"),
        ({"text": LONG, "return_logprob": True, "logprob_start_len": 0}, GENERATE, "logprob_start_len"),
        ({"inputs": LONG, "parameters": {"decoder_input_details": True}}, GENERATE, "decoder_input_details"),
        (
            {"token_ids": [1] * 9000, "sampling_params": {"prompt_logprobs": 1}},
            Route(Dialect.VLLM_TOKENS, True, "x"),
            "prompt_logprobs",
        ),
    ],
)
def test_prompt_logprobs_of_long_prompts_are_refused(
    fields: dict[str, Any], route: Route, param: str
) -> None:
    """By default only of short prompts, whichever way the engine spells it."""
    got = problem(fields, route)
    assert got.param == param
    assert "2048" in str(got)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "short", "prompt_logprobs": 1},
        {"prompt": LONG, "echo": True},
        {"prompt": LONG, "logprobs": 5},
        {"prompt": LONG, "echo": True, "logprobs": None},
        {"prompt": LONG, "return_logprob": True},
        {"prompt": LONG, "return_logprob": True, "logprob_start_len": -1},
    ],
)
def test_harmless_logprobs_pass(fields: dict[str, Any]) -> None:
    """Of short prompts, or of the answer only."""
    assert examine(json.dumps(fields).encode(), COMPLETIONS, FieldPolicy()).data is None


def test_prompt_logprobs_can_be_refused_altogether() -> None:
    """Or allowed without bound."""
    fields = {"prompt": "x", "prompt_logprobs": 1}
    assert problem(fields, prompt_logprobs="reject").param == "prompt_logprobs"
    examine(json.dumps(fields | {"prompt": LONG}).encode(), COMPLETIONS, FieldPolicy(prompt_logprobs="allow"))


@pytest.mark.parametrize(
    ("fields", "route", "param"),
    [
        ({"prompt": "x", "n": 17}, COMPLETIONS, "n"),
        ({"prompt": "x", "n": "17"}, COMPLETIONS, "n"),
        ({"prompt": "x", "best_of": 100}, COMPLETIONS, "best_of"),
        ({"text": "x", "sampling_params": {"n": 99}}, GENERATE, "n"),
        ({"text": "x", "sampling_params": [{"n": 1}, {"n": 99}]}, GENERATE, "n"),
        ({"inputs": "x", "parameters": {"best_of": 99}}, GENERATE, "best_of"),
    ],
)
def test_too_many_answers_side_by_side_are_refused(fields: dict[str, Any], route: Route, param: str) -> None:
    """With the bound in the message."""
    got = problem(fields, route)
    assert got.param == param
    assert "16" in str(got)


def test_clamping_sets_the_bound_and_reprices() -> None:
    """At the top and nested; what is within the bound stays, and the cost is that of the new body."""
    clamp = FieldPolicy(on_excess_parallel="clamp", max_parallel=4)
    got = examine(b'{"prompt":"x","n":99,"best_of":2}', COMPLETIONS, clamp)
    assert got.data == b'{"prompt":"x","n":4,"best_of":2}'
    assert got.cost.sequences == 4
    body = b'{"text":"x","sampling_params":[{"n": 1},{"n":99, "t":1.0}]}'
    assert examine(body, GENERATE, clamp).data == b'{"text":"x","sampling_params":[{"n":1},{"n":4,"t":1.0}]}'


def test_beam_search_can_be_refused() -> None:
    """Allowed by default, within the bound on answers side by side."""
    fields = {"prompt": "x", "use_beam_search": True, "n": 4}
    examine(json.dumps(fields).encode(), COMPLETIONS, FieldPolicy())
    assert problem(fields, beam_search="reject").param == "use_beam_search"
    nested = {"text": "x", "sampling_params": {"beam_width": 3}}
    assert problem(nested, GENERATE, beam_search="reject").param == "use_beam_search"


def test_forms_are_checked_but_not_rewritten() -> None:
    """An upload whose `n` is too large is refused even where JSON would be clamped."""
    body = b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\n99\r\n--b--\r\n'
    route = Route(Dialect.OPENAI_AUDIO, True, "x")
    with pytest.raises(FieldProblem, match="forms are not changed"):
        examine(body, route, FieldPolicy(on_excess_parallel="clamp"))
    stated = body.replace(b'"n"', b'"priority"')
    assert examine(stated, route, FieldPolicy()).data is None


async def test_large_bodies_are_read_off_the_loop() -> None:
    """While a thread decodes, the loop turns."""
    body, threads = json.dumps({"prompt": "x" * (OFF_LOOP_BYTES + 1)}).encode(), Threads()
    task = asyncio.create_task(threads.examine(body, COMPLETIONS, FieldPolicy()))
    await asyncio.sleep(0)
    assert not task.done()
    assert (await task).cost == estimate(body, COMPLETIONS)
    small = await threads.examine(b'{"prompt":"x"}', COMPLETIONS, FieldPolicy())
    assert small.cost == estimate(b'{"prompt":"x"}', COMPLETIONS)


async def test_large_bodies_do_not_wait_for_the_apps_threads() -> None:
    """An app that keeps every thread of the loop busy holds up no admission."""
    loop, end = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, end.wait)
    try:
        body = json.dumps({"prompt": "x" * (OFF_LOOP_BYTES + 1)}).encode()
        async with bed(level=Level(capacity_tokens=1_000_000)) as gate:
            assert (await asyncio.wait_for(gate.post(body), 10)).status_code == 200
    finally:
        end.set()
        await busy


@pytest.mark.parametrize("wrong", [{"priority": "yes"}, {"max_parallel": 0}, {"max_paralel": 3}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """At construction."""
    with pytest.raises(ValidationError):
        FieldPolicy(**wrong)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["priority", "n", "best_of", "sampling_params", "parameters", "prompt", "x", "echo"])
        | st.text(max_size=4),
        json_values | st.dictionaries(st.sampled_from(["n", "best_of", "y"]), json_values, max_size=3),
        max_size=6,
    ),
    st.booleans(),
)
@settings(deadline=None)
def test_only_named_fields_change(fields: dict[str, Any], allow_nan: bool) -> None:
    """Property: for any body the app sees the same JSON, but for the policy's own fields."""
    body = json.dumps(fields | ({"inf": float("inf")} if allow_nan else {})).encode()
    policy = FieldPolicy(on_excess_parallel="clamp", max_parallel=4, prompt_logprobs="allow")
    got, was = json.loads(after(body, GENERATE, **policy.model_dump())), json.loads(body)
    assert got.pop("priority", None) is None
    was.pop("priority", None)
    for part in (got, was):
        for holder in (part, part.get("sampling_params"), part.get("parameters")):
            for each in holder if isinstance(holder, list) else [holder]:
                if isinstance(each, dict):
                    each.pop("n", None), each.pop("best_of", None)
    assert got == was


def test_rewrite_refuses_what_is_no_object() -> None:
    """It is only ever called with a body that was understood."""
    with pytest.raises(ValueError, match="JSON"):
        rewrite(b"[NaN]", [Change(None, "n", 1)])
