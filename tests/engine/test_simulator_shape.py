"""The simulator answers in the same shape as the vLLM it stands in for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.engine_bed import MODEL, READ_S, Engine
from tests.server.test_simulator_app import BAD_BODIES
from tidegate.testing import EngineOptions, create_engine_app

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

TRIES = 50  # a server that falls behind puts several tokens into one event, and then some shapes do not come

SIMULATED = EngineOptions(step_s=1e-4, prefill_s_per_token=0, decode_s_per_sequence=0)
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
LONG = {"max_tokens": 40, "ignore_eos": True}

GOOD_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"model": MODEL, "prompt": "hello world"} | LONG),
    ("completions", {"prompt": ["hello world", "x"], "n": 2} | LONG),
    ("completions", {"prompt": [5, 6, 7], "max_tokens": "4", "ignore_eos": True}),
    ("completions", {"prompt": "hello", "stream": True} | LONG),
    ("completions", {"prompt": "hello", "n": 2} | LONG | USAGE),
    ("completions", {"prompt": "hello"} | LONG | CONTINUOUS),
    ("chat/completions", CHAT | LONG),
    ("chat/completions", CHAT | {"stream": True} | LONG),
    ("chat/completions", CHAT | {"n": 2, "max_completion_tokens": 40, "ignore_eos": True} | USAGE),
    ("chat/completions", CHAT | LONG | CONTINUOUS),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]} | LONG,
    ),
]


def shape(value: Any) -> Any:
    """Keys and types without the values; an empty list has no shape to compare."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value[:1]]
    return type(value).__name__


async def ask(
    engine: Engine, method: str, path: str, **request: Any
) -> tuple[httpx.Response, httpx.Response]:
    """The answers of the real server and of the simulated one."""
    app = create_engine_app(SIMULATED, model=MODEL)
    async with (
        httpx.AsyncClient(base_url=engine.url, timeout=READ_S) as real,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=engine.url) as simulated,
    ):
        return await real.request(method, path, **request), await simulated.request(method, path, **request)


def event_shapes(response: httpx.Response) -> tuple[list[Any], list[str]]:
    """The shapes of a stream's events (each once, in order of first sight), and its frame."""
    blocks = response.text.split("\n\n")
    shapes: list[Any] = []
    for block in blocks[:-2]:
        event = shape(json.loads(block.removeprefix("data: ")))
        if event not in shapes:
            shapes.append(event)
    return shapes, blocks[-2:]


@pytest.mark.parametrize(("path", "body"), GOOD_BODIES)
async def test_answers_have_the_same_keys_and_types(bare: Engine, path: str, body: dict[str, Any]) -> None:
    """Whole answers, and every event of a stream."""
    real, simulated = await ask(bare, "POST", f"/v1/{path}", json=body)
    assert (real.status_code, simulated.status_code) == (200, 200)
    assert simulated.headers["content-type"] == real.headers["content-type"]
    if body.get("stream"):
        wanted = event_shapes(simulated)
        for _ in range(TRIES):
            shapes, frame = event_shapes(real)
            assert frame == wanted[1]
            assert all(each in wanted[0] for each in shapes)
            if shapes == wanted[0]:
                break
            real, _ = await ask(bare, "POST", f"/v1/{path}", json=body)
        assert shapes == wanted[0]
    else:
        assert shape(simulated.json()) == shape(real.json())
        completion = real.json()["usage"]["completion_tokens"]
        assert simulated.json()["usage"]["completion_tokens"] == completion


@pytest.mark.parametrize(("path", "body", "status", "type_", "param"), BAD_BODIES)
async def test_errors_have_the_same_status_type_and_parameter(
    bare: Engine, path: str, body: Any, status: int, type_: str | None, param: str | None
) -> None:
    """What is wrong with a body is told in the same words to a program, if not to a person."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    real, simulated = await ask(bare, "POST", f"/v1/{path}", content=content, headers=headers)
    assert (real.status_code, simulated.status_code) == (status, status)
    assert shape(simulated.json()) == shape(real.json())
    if type_ is not None:
        wanted, got = real.json()["error"], simulated.json()["error"]
        assert (got["type"], got["code"]) == (wanted["type"], wanted["code"])
        # vLLM goes on with positions and the names of its own types: body.messages.0.SomeMessageParam
        assert f"{wanted['param']}.".startswith(f"{got['param']}.")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("POST", "/health"),
        ("GET", "/ping"),
        ("POST", "/ping"),
        ("GET", "/version"),
        ("GET", "/nope"),
        ("GET", "/v1/completions"),
    ],
)
async def test_paths_have_the_same_status_and_body_shape(bare: Engine, method: str, path: str) -> None:
    """Health, version, unknown paths and wrong methods."""
    real, simulated = await ask(bare, method, path)
    assert simulated.status_code == real.status_code
    assert bool(simulated.content) == bool(real.content)
    if real.content:
        assert shape(simulated.json()) == shape(real.json())


async def test_the_list_of_models_has_the_same_keys(bare: Engine) -> None:
    """The card's permissions aside, which nobody reads."""
    real, simulated = await ask(bare, "GET", "/v1/models")
    cards = [shape(answer.json()["data"][0] | {"permission": []}) for answer in (simulated, real)]
    assert cards[0] | {"parent": None} == cards[1] | {"parent": None}


async def test_metrics_have_the_same_names_types_and_labels(bare: Engine) -> None:
    """Everything the simulator exports exists in vLLM, with the same type and the same labels."""
    real, simulated = await ask(bare, "GET", "/metrics")
    assert simulated.headers["content-type"] == real.headers["content-type"]
    known = {family.name: family for family in text_string_to_metric_families(real.text)}
    for family in text_string_to_metric_families(simulated.text):
        wanted = known[family.name]
        assert family.type == wanted.type
        names = {sample.name for sample in wanted.samples}
        assert {sample.name for sample in family.samples} <= names
        wanted_labels = set(wanted.samples[0].labels)
        assert all(set(sample.labels) <= wanted_labels for sample in family.samples)
        if family.name != "vllm:cache_config_info":
            assert all(set(sample.labels) == wanted_labels for sample in family.samples)
