"""Bodies of very many small parts: what they cost us does not grow with them, and nothing of them is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.readings import route
from tidegate.asgi import cost, examine, fields, plain, tally
from tidegate.asgi.cost import MOST_PARAMETERS, cost_of
from tidegate.asgi.examine import MOST_CONTAINERS
from tidegate.asgi.fields import FieldPolicy, FieldProblem
from tidegate.asgi.tally import MOST_PARTS, Tally

OURS = {module.__file__ for module in (cost, examine, fields, plain, tally)}


def lines_run(work: Callable[[], Any]) -> int:
    """Lines of the readers of bodies that are run: a measure of work that no machine changes."""
    count = 0

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: local if frame.f_code.co_filename in OURS else None)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_query_is_read_once_however_many_documents_it_is_for() -> None:
    """And counted for each of them."""

    def fields_with(documents: int) -> dict[str, Any]:
        return {"query": [{"text": "q"}, "中", [1, 2]] * 50, "documents": ["d"] * documents}

    one, many = (cost_of(fields_with(count), route("/rerank")) for count in (1, 500))
    assert many.ascii_bytes - 500 == 500 * (one.ascii_bytes - 1)
    assert (many.other_bytes, many.token_ids) == (500 * one.other_bytes, 500 * one.token_ids)
    few = lines_run(lambda: cost_of(fields_with(2), route("/rerank")))
    assert lines_run(lambda: cost_of(fields_with(500), route("/rerank"))) < 1.1 * few


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_a_batch_of_texts_costs_what_its_texts_cost(texts: list[str]) -> None:
    """Together as one by one, whatever they hold."""
    together, apart = Tally(), Tally()
    together.walk(texts)
    for text in texts:
        apart.text(text)
    assert (together.ascii_bytes, together.other_bytes) == (apart.ascii_bytes, apart.other_bytes)
    found = cost_of({"prompt": texts, "n": 2}, route("/v1/completions"))
    assert (found.ascii_bytes, found.other_bytes) == (apart.ascii_bytes, apart.other_bytes)
    assert found.sequences == 2 * len(texts)


def test_a_batch_of_texts_is_as_certain_as_its_longest() -> None:
    """Blanks around it do not count."""
    found = cost_of({"prompt": ["a", " " * 5000, "b" * 2048 + " " * 5000]}, route("/v1/completions"))
    assert found.prompt_tokens_floor == 4


def test_a_batch_of_texts_is_no_step_for_each() -> None:
    """Thousands of short ones are the cheapest body to send."""
    few = lines_run(lambda: cost_of({"prompt": ["a"] * 10}, route("/v1/completions")))
    assert lines_run(lambda: cost_of({"prompt": ["a"] * 1000}, route("/v1/completions"))) == few


ODD = {
    "empty messages": ("/v1/chat/completions", b'{"messages":[%s{}]}', b"{},"),
    "empty parts": ("/v1/chat/completions", b'{"messages":[{"content":[%s{}]}]}', b"{},"),
    "one token each": ("/v1/completions", b'{"prompt":[%s[1]]}', b"[1],"),
    "numbers": ("/v1/completions", b'{"prompt":[%s1.5]}', b"1.5,"),
    "media": ("/pooling", b'{"images":[%s1]}', b"1,"),
    "media in lists": ("/pooling", b'{"images":[%s[1]]}', b"[1],"),
    "a media item of many": ("/v1/chat/completions", b'{"messages":[{"image_url":[%s{}]}]}', b"{},"),
    "texts and numbers": ("/rerank", b'{"query":"q","documents":[%s"a"]}', b'1.5,"a",'),
    "query": ("/rerank", b'{"documents":["a","b"],"query":[%s1.5]}', b"[1.5],"),
}


@pytest.mark.parametrize("what", ODD)
def test_of_too_many_parts_the_rest_is_not_looked_at(what: str) -> None:
    """The work is bounded, and the price is no less than by the length."""
    path, around, part = ODD[what]
    one, four = (around % (part * (count * MOST_PARTS)) for count in (2, 8))
    found = examine.examine(four, route(path), FieldPolicy()).cost
    if what == "a media item of many":
        assert found.media_items == 1
    else:
        assert found.unparsed
        assert found.ascii_bytes >= len(four)
    once = lines_run(lambda: examine.examine(one, route(path), FieldPolicy()))
    assert lines_run(lambda: examine.examine(four, route(path), FieldPolicy())) < 1.1 * once


@pytest.mark.parametrize("name", ["sampling_params", "parameters"])
def test_the_objects_of_parameters_are_bounded_too(name: str) -> None:
    """Each of them is looked through for what is not allowed, so more than any batch has are refused."""
    body = b'{"text":"x","' + name.encode() + b'":[%s{"n":9999}]}'
    with pytest.raises(FieldProblem, match=name):
        examine.examine(body % (b"{}," * MOST_PARAMETERS), route("/generate"), FieldPolicy())
    with pytest.raises(FieldProblem, match="'n'"):
        examine.examine(body % (b"{}," * (MOST_PARAMETERS - 1)), route("/generate"), FieldPolicy())


@pytest.mark.parametrize("container", [b"[],", b"{},"])
def test_a_body_of_a_million_lists_is_not_even_read(container: bytes) -> None:
    """It would take twenty times its size, before anybody has decided whether it may come in."""
    body = b'{"prompt":[%s1]}' % (container * MOST_CONTAINERS)
    with pytest.raises(FieldProblem, match="lists and objects"):
        examine.examine(body, route("/v1/completions"), FieldPolicy())
    brackets = b'{"prompt":"%s"}' % (b"[" * (MOST_CONTAINERS - 1))
    assert examine.examine(brackets, route("/v1/completions"), FieldPolicy()).cost.ascii_bytes
