"""The simulated server: OpenAI bodies and streams, vLLM's errors and metrics, cancellation on disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.testing import EngineApp, EngineOptions, FakeClock, create_engine_app

FAST = EngineOptions(step_s=1e-4, prefill_s_per_token=0, decode_s_per_sequence=0)
CHAT = {"messages": [{"role": "user", "content": "How high is the tide?"}]}


@pytest.fixture
def app() -> EngineApp:
    """A server whose steps take a tenth of a millisecond."""
    return create_engine_app(FAST, model="tiny", wall_clock=lambda: 1_700_000_000.0)


@pytest.fixture
async def client(app: EngineApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app`, without a network."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
        yield client


def events(body: str) -> list[Any]:
    """The JSON events of a stream, which must end as OpenAI's do."""
    blocks = body.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


async def test_a_completion_has_the_length_that_was_asked_for(client: httpx.AsyncClient) -> None:
    """With ignore_eos the answer is max_tokens long and the usage says so."""
    body = {"model": "tiny", "prompt": "x" * 40, "max_tokens": 12, "ignore_eos": True}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert answer["object"] == "text_completion"
    assert len(answer["choices"][0]["text"].split()) == 12
    assert answer["choices"][0]["finish_reason"] == "length"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (10, 12)


async def test_prompts_and_n_multiply(client: httpx.AsyncClient) -> None:
    """Two prompts and n=2 are four choices, each a sequence of its own."""
    body = {"prompt": ["one", [1, 2, 3]], "n": 2, "max_tokens": 3, "ignore_eos": True}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) > 1
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 12,
        "total_tokens": 16,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


async def test_a_stream_says_the_same_as_the_whole_answer(client: httpx.AsyncClient) -> None:
    """Deltas of each choice join to the text of the unstreamed answer; usage comes last."""
    body = CHAT | {"max_completion_tokens": 9, "n": 2, "ignore_eos": True}
    whole = (await client.post("/v1/chat/completions", json=body)).json()
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post("/v1/chat/completions", json=streamed)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, usage = events(response.text)
    assert [chunk["choices"][0]["delta"]["role"] for chunk in chunks[:2]] == ["assistant", "assistant"]
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        text = "".join(choice["delta"]["content"] for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 18


async def test_continuous_usage_counts_up(client: httpx.AsyncClient) -> None:
    """Every event tells the tokens so far when asked to."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "stream": True, "stream_options": options}
    counts = [
        event["usage"]["completion_tokens"]
        for event in events((await client.post("/v1/completions", json=body)).text)
    ]
    assert counts == [1, 2, 3, 3]


async def test_answers_end_by_themselves_and_equal_prompts_are_answered_equally() -> None:
    """Without ignore_eos the length is drawn from seed and prompt, not from the order of arrival."""
    texts = []
    for order in ((0, 1, 2, 3), (3, 2, 1, 0)):
        server = create_engine_app(FAST, seed=5, answer_tokens=8)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://e") as client:
            bodies = [
                CHAT | {"user": "me", "messages": [{"role": "user", "content": str(i)}]} for i in range(4)
            ]
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=bodies[index]) for index in order)
            )
        choices = [answer.json()["choices"][0] for answer in answers]
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        texts.append(sorted(choice["message"]["content"] for choice in choices))
    assert texts[0] == texts[1]


async def test_the_answer_is_cut_at_the_end_of_the_context(client: httpx.AsyncClient) -> None:
    """A max_tokens that does not fit beside the prompt is shortened, as the real server does."""
    body = {"prompt": "x" * 4 * 2000, "max_tokens": 500, "ignore_eos": True}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 48


BAD_BODIES: list[tuple[str, Any, int, str | None, str | None]] = [
    ("completions", {"model": "other", "prompt": "a"}, 404, "NotFoundError", "model"),
    ("completions", {"max_tokens": 5}, 400, "BadRequestError", "prompt"),
    ("completions", {"prompt": ""}, 400, "BadRequestError", "prompt"),
    ("completions", {"prompt": []}, 400, "BadRequestError", None),
    ("completions", {"prompt": 5}, 400, "Bad Request", "body.prompt"),
    ("completions", {"prompt": ["a", 5]}, 400, "Bad Request", "body.prompt"),
    ("completions", {"prompt": "a", "max_tokens": "many"}, 400, "Bad Request", "body.max_tokens"),
    ("completions", {"prompt": "a", "max_tokens": 1.5}, 400, "Bad Request", "body.max_tokens"),
    ("completions", {"prompt": "a", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
    ("completions", {"prompt": "a", "max_tokens": 99999}, 400, "BadRequestError", "max_tokens"),
    ("completions", {"prompt": "a", "n": 0}, 400, "BadRequestError", None),
    ("completions", {"prompt": "a", "stream": "maybe"}, 400, "Bad Request", "body.stream"),
    (
        "completions",
        {"prompt": "a", "stream_options": {"include_usage": True}},
        400,
        "BadRequestError",
        "stream_options",
    ),
    ("completions", {"prompt": "word " * 4000}, 400, "BadRequestError", "input_tokens"),
    ("completions", [1], 400, "Bad Request", "body"),
    ("completions", b"{not json", 400, "Bad Request", "body"),
    ("completions", b'{"prompt": "\xff"}', 400, None, None),
    ("chat/completions", {}, 400, "Bad Request", "body.messages"),
    ("chat/completions", {"messages": []}, 400, "BadRequestError", None),
    ("chat/completions", {"messages": "hi"}, 400, "Bad Request", "body.messages"),
    ("chat/completions", {"messages": ["hi"]}, 400, "Bad Request", "body.messages"),
]


@pytest.mark.parametrize(("path", "body", "status", "type_", "param"), BAD_BODIES)
async def test_bad_bodies_are_answered_as_vllm_does(
    client: httpx.AsyncClient, path: str, body: Any, status: int, type_: str | None, param: str | None
) -> None:
    """Status, error type and parameter; never a 500, and nothing reaches the engine."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(f"/v1/{path}", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    if type_ is None:
        assert list(response.json()) == ["detail"]
    else:
        error = response.json()["error"]
        assert (error["type"], error["code"]) == (type_, status)
        assert error["param"] == param


async def test_another_content_type_is_refused(client: httpx.AsyncClient) -> None:
    """Only JSON is read."""
    response = await client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 400
    assert "Unsupported Media Type" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
        ("GET", "/ping", 200),
    ],
)
async def test_paths_and_methods(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    """Unknown paths and wrong methods get what a web framework would say."""
    assert (await client.request(method, path)).status_code == status


async def test_models_tell_the_length_of_the_context(client: httpx.AsyncClient) -> None:
    """A gate can read max_model_len before the first request."""
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 2048)


async def test_metrics_move_with_the_work(client: httpx.AsyncClient) -> None:
    """vLLM's names and labels; counters count what was generated."""
    body = {"prompt": "x" * 40, "max_tokens": 12, "ignore_eos": True}
    await client.post("/v1/completions", json=body)
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert samples["vllm:generation_tokens_total"].value == 12
    assert samples["vllm:prompt_tokens_total"].value == 10
    assert samples["vllm:kv_cache_usage_perc"].labels == {"engine": "0", "model_name": "tiny"}
    config = samples["vllm:cache_config_info"].labels
    assert (config["block_size"], config["num_gpu_blocks"]) == ("16", "1024")
    assert config["kv_cache_size_tokens"] == "16384"


class Caller:
    """One bare ASGI exchange whose caller can hang up."""

    def __init__(self, app: EngineApp, path: str, body: dict[str, Any]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    def hang_up(self) -> None:
        """The connection is gone."""
        self._inbox.put_nowait({"type": "http.disconnect"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_hangs_up_frees_its_blocks(stream: bool) -> None:
    """Streamed or not, waiting or running: the engine forgets the request and the app returns."""
    clock = FakeClock()
    options = EngineOptions(max_sequences=1)
    app = create_engine_app(options, clock=clock, sleep=clock.sleep)
    body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": stream}
    running, waiting = Caller(app, "/v1/completions", body), Caller(app, "/v1/completions", body)
    await clock.run(0.2)
    assert (app.stats().running, app.stats().waiting) == (1, 1)
    for caller in (waiting, running):
        caller.hang_up()
    await clock.run(0.1)
    assert running.task.done()
    assert waiting.task.done()
    assert (app.stats().running, app.stats().waiting, app.stats().kv_usage) == (0, 0, 0.0)
    assert app.stats().cancelled_requests == 2


async def test_the_engine_keeps_its_own_pace() -> None:
    """Tokens arrive when their step ends, one step after another."""
    clock = FakeClock()
    options = EngineOptions(step_s=0.02, prefill_s_per_token=0, decode_s_per_sequence=0)
    app = create_engine_app(options, clock=clock, sleep=clock.sleep)
    body = {"prompt": "x", "max_tokens": 5, "ignore_eos": True, "stream": True}
    caller = Caller(app, "/v1/completions", body)
    await clock.run(0.019)
    assert len(caller.messages) == 1  # the head of the response
    await clock.run(0.002)
    assert len(caller.messages) == 2
    await clock.run(0.08)
    assert caller.task.done()
    assert caller.messages[-1]["body"] == b"data: [DONE]\n\n"


async def test_cancelling_the_app_cancels_the_request() -> None:
    """A server that shuts down leaves no sequence behind."""
    clock = FakeClock()
    app = create_engine_app(clock=clock, sleep=clock.sleep)
    caller = Caller(app, "/v1/completions", {"prompt": "x", "max_tokens": 100, "ignore_eos": True})
    await clock.run(0.1)
    caller.task.cancel()
    await asyncio.gather(caller.task, return_exceptions=True)
    assert not app.engine.has_work
    await clock.run(0.1)
