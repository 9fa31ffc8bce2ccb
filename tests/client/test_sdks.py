"""The real OpenAI and Anthropic SDKs through the client, before a real server."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

import tidegate_client.httpx2
from tests.client.real_server import Line, ScriptApp, busy
from tidegate_client import RateLimited, RetryPolicy, Why, call_options, rate_limited
from tidegate_client.board import Board
from tidegate_client.sdks import (
    anthropic_client,
    async_anthropic_client,
    async_openai_client,
    openai_client,
    retrying,
)
from tidegate_client.testing import FakeClock, ScriptedServer, answer

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
QUICK = RetryPolicy(jitter_base_s=0.01, backoff_base_s=0.01, wait_budget_s=5)


pytestmark = pytest.mark.usefixtures("own_board")


def test_openai_waits_and_goes_on(engine: ScriptApp) -> None:
    """Two refusals, then the answer; the SDK's own attempt header counts on and one key covers all
    attempts.
    """
    engine.script += [busy(), busy()]
    with openai_client(policy=QUICK, base_url=f"{engine.url}/v1", api_key="k") as client:
        answer = client.chat.completions.create(**ASK)

    assert answer.choices[0].message.content == "hello"
    headers = [headers for _, _, headers, _ in engine.received]
    assert [each["x-stainless-retry-count"] for each in headers] == ["0", "1", "2"]
    assert len({each["idempotency-key"] for each in headers}) == 1
    assert engine.received[1][0] - engine.received[0][0] >= 0.05


async def test_async_openai_streams_after_a_refusal(engine: ScriptApp) -> None:
    """A streamed answer comes through whole, in pieces, after a refusal."""
    engine.script += [busy()]
    async with async_openai_client(policy=QUICK, base_url=f"{engine.url}/v1", api_key="k") as client:
        stream = await client.chat.completions.create(**ASK, stream=True)
        words = [chunk.choices[0].delta.content async for chunk in stream]

    assert words == ["he", "llo"]
    assert len(engine.received) == 2


async def test_openai_gets_its_own_error_with_the_time(engine: ScriptApp) -> None:
    """A refusal over the budget is the SDK's RateLimitError after one attempt, and carries ours."""
    engine.script += [busy(3_600_000)]
    async with async_openai_client(base_url=f"{engine.url}/v1", api_key="k") as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**ASK)

    ours = rate_limited(caught.value)
    assert ours is not None
    assert (ours.retry_after, ours.why, ours.reason) == (3600, Why.OVER_BUDGET, "queue_full")
    assert caught.value.code == "RATE_LIMIT_EXCEEDED"
    assert len(engine.received) == 1


def test_sdk_retries_left_on_do_not_multiply_refusals(engine: ScriptApp) -> None:
    """With the SDK's own five retries on, a server that always refuses sees max_attempts calls, not six times
    as many.
    """
    engine.script += [busy(1) for _ in range(50)]
    policy = RetryPolicy(max_attempts=3, jitter_base_s=0.01, min_wait_s=0.01)
    with (
        openai_client(policy=policy, base_url=f"{engine.url}/v1", api_key="k", max_retries=5) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.chat.completions.create(**ASK)

    assert len(engine.received) == 3


def test_sdk_retries_left_on_do_not_multiply_broken_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's further tries continue the first one's count: nothing is sent beyond max_attempts."""
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: None)
    sent = []

    def refuse_connection(request: httpx2.Request) -> httpx2.Response:
        sent.append((request.headers["x-stainless-retry-count"], request.headers["idempotency-key"]))
        raise httpx2.ConnectError("no server", request=request)

    policy = RetryPolicy(max_attempts=4, backoff_base_s=0.01, min_wait_s=0.001)
    transport = tidegate_client.httpx2.RetryTransport(httpx2.MockTransport(refuse_connection), policy=policy)
    http_client = httpx2.Client(transport=transport)
    with (
        openai.OpenAI(base_url="http://e/v1", api_key="k", http_client=http_client, max_retries=3) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.chat.completions.create(**ASK)

    assert [count for count, _ in sent] == ["0", "1", "2", "3"]
    assert len({key for _, key in sent}) == 1


def test_an_sdks_further_try_goes_by_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A POST whose answer broke off is the SDK's to send again; the server can tell it is the same work."""
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: None)
    keys: list[str] = []

    def break_off(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["idempotency-key"])
        raise httpx2.ReadError("broken off", request=request)

    transport = tidegate_client.httpx2.RetryTransport(httpx2.MockTransport(break_off))
    http_client = httpx2.Client(transport=transport)
    with openai.OpenAI(base_url="http://e/v1", api_key="k", http_client=http_client, max_retries=2) as client:
        for _ in range(2):
            with pytest.raises(openai.APIConnectionError):
                client.chat.completions.create(**ASK)

    assert len(keys) == 6
    assert [len(set(keys[:3])), len(set(keys[3:])), len(set(keys))] == [1, 1, 2]


def test_the_sdks_own_retries_of_other_errors_still_work(
    engine: ScriptApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 500 is the SDK's business: its retry comes through, numbered by the SDK."""
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: None)
    engine.script += [Line(500, body={"error": {}})]
    with openai_client(policy=QUICK, base_url=f"{engine.url}/v1", api_key="k", max_retries=2) as client:
        client.chat.completions.create(**ASK)

    assert [headers["x-stainless-retry-count"] for _, _, headers, _ in engine.received] == ["0", "1"]


def test_an_sdks_further_tries_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a 500 the SDK tries again: by the same key, within one deadline, and at most max_attempts."""
    clock = FakeClock()
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: clock.advance(2))
    server = ScriptedServer(then=answer({"error": {}}, 500), clock=clock)
    policy = RetryPolicy(deadline_s=20, max_attempts=4)
    inner = httpx2.MockTransport(server)
    transport = tidegate_client.httpx2.RetryTransport(inner, policy=policy, timebase=clock, board=Board())
    http_client = httpx2.Client(transport=transport)
    with (
        openai.OpenAI(base_url="http://e/v1", api_key="k", http_client=http_client, max_retries=9) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(**ASK)

    headers = [request.headers for request in server.received]
    assert [each["prefer"] for each in headers] == ["wait=20", "wait=18", "wait=16", "wait=14"]
    assert len({each["idempotency-key"] for each in headers}) == 1


def test_after_its_deadline_an_sdk_tries_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over for the call is over for the SDK on top, attempts or none left."""
    clock = FakeClock()
    monkeypatch.setattr("openai._base_client.time.sleep", lambda seconds: None)

    def serve(request: httpx2.Request) -> httpx2.Response:
        clock.advance(11)
        return httpx2.Response(500, json={"error": {}})

    inner, policy = httpx2.MockTransport(serve), RetryPolicy(deadline_s=20)
    transport = tidegate_client.httpx2.RetryTransport(inner, policy=policy, timebase=clock, board=Board())
    http_client = httpx2.Client(transport=transport)
    with (
        openai.OpenAI(base_url="http://e/v1", api_key="k", http_client=http_client, max_retries=9) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(**ASK)

    assert clock.now == 1022


def test_quota_used_up_is_an_error_at_once(engine: ScriptApp) -> None:
    """`insufficient_quota` is not waited for, though the SDK would have retried it."""
    engine.script += [Line(429, {"retry-after": "1"}, {"error": {"code": "insufficient_quota"}})]
    with (
        openai_client(policy=QUICK, base_url=f"{engine.url}/v1", api_key="k", max_retries=2) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.chat.completions.create(**ASK)

    ours = rate_limited(caught.value)
    assert ours is not None
    assert ours.why is Why.QUOTA
    assert len(engine.received) == 1


def test_openai_on_the_older_httpx_too(engine: ScriptApp) -> None:
    """The SDK also takes a client of httpx; ours fits there as well."""
    engine.script += [busy()]
    http_client: Any = tidegate_client.Client(policy=QUICK)
    with openai.OpenAI(
        base_url=f"{engine.url}/v1", api_key="k", http_client=http_client, max_retries=0
    ) as client:
        assert client.chat.completions.create(**ASK).choices[0].message.content == "hello"


def test_anthropic_waits_and_goes_on(engine: ScriptApp) -> None:
    """The Anthropic SDK gets its message after two refusals."""
    engine.script += [busy(), busy()]
    with anthropic_client(policy=QUICK, base_url=engine.url, api_key="k") as client:
        message = client.messages.create(**ASK, max_tokens=5)

    assert message.content[0].to_dict()["text"] == "hello"
    assert len(engine.received) == 3


async def test_async_anthropic_gets_its_own_error(engine: ScriptApp) -> None:
    """A refusal over the budget is Anthropic's RateLimitError, and carries ours; its retries left on send
    nothing more.
    """
    engine.script += [busy(3_600_000), busy(3_600_000)]
    async with async_anthropic_client(base_url=engine.url, api_key="k", max_retries=2) as client:
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(**ASK, max_tokens=5)

    ours = rate_limited(caught.value)
    assert ours is not None
    assert ours.retry_after == 3600
    assert len(engine.received) == 1


def test_options_reach_through_the_sdk(engine: ScriptApp) -> None:
    """A deadline set around an SDK's call reaches the server as `Prefer: wait`."""
    with (
        openai_client(policy=QUICK, base_url=f"{engine.url}/v1", api_key="k") as client,
        call_options(deadline_s=30),
    ):
        client.chat.completions.create(**ASK)

    assert engine.received[0][2]["prefer"] in {"wait=29", "wait=30"}


def test_a_client_some_library_built(engine: ScriptApp) -> None:
    """`retrying` fits an existing client in place, of either library; anything else is named in the error."""
    for library in (httpx, httpx2):
        engine.script += [busy()]
        with retrying(library.Client(), policy=QUICK) as client:
            assert client.get(engine.url).status_code == 200

    with pytest.raises(TypeError, match="no client of httpx"):
        retrying(object())


def test_rate_limited_finds_nothing_in_other_errors() -> None:
    """Errors without ours behind them give None; ours gives itself."""
    ours = RateLimited(why=Why.ATTEMPTS, retry_after=None, wall_now=0.0)

    assert rate_limited(ValueError()) is None
    assert rate_limited(ours) is ours
    assert json.dumps(str(ours))
