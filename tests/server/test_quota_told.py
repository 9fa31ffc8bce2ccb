"""What is left of a tenant's quota, told to callers that were admitted (`reply.quota_on_admitted`)."""

from __future__ import annotations

from typing import Any

import http_sf
import httpx
import pytest

from tests.server.bed import bed, explode
from tidegate.asgi.types import Receive, Scope, Send

SLOW: dict[str, Any] = {"requests_per_s": 0.001, "request_burst": 3}


def told(response: httpx.Response, name: str = "ratelimit") -> dict[str, dict[str, Any]]:
    """The list of a structured field: its items' parameters by item."""
    parsed: Any = http_sf.parse(response.headers[name].encode(), tltype="list")
    return {item: dict(parameters) for item, parameters in parsed}


async def test_so_many_are_left_as_are_told() -> None:
    """Counting down to nothing, and then it is refused with the very time told before."""
    async with bed(default_tenant=SLOW, reply={"quota_on_admitted": True}) as b:
        answers = [await b.post() for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        left = [told(answer)["requests"] for answer in answers[:3]]
        assert [each["r"] for each in left] == [2, 1, 0]
        assert left[0]["t"] == pytest.approx(1000, abs=2)
        assert left[2]["t"] == pytest.approx(int(answers[3].headers["retry-after"]), abs=2)
        assert "ratelimit-policy" not in answers[0].headers


async def test_both_buckets_and_their_policies() -> None:
    """Tokens charged are tokens no longer told; the policy says how much there can be."""
    quota = {**SLOW, "tokens_per_s": 0.001, "token_burst": 1000}
    reply = {"quota_on_admitted": True, "send_policy": True}
    async with bed(default_tenant=quota, reply=reply) as b:
        answer = await b.post()
        assert told(answer)["requests"]["r"] == 2
        assert 900 <= told(answer)["tokens"]["r"] < 1000
        policies = told(answer, "ratelimit-policy")
        assert policies["requests"] == {"q": 3, "qu": "requests"}
        assert policies["tokens"] == {"q": 1000, "tidegate-unit": "tokens"}


@pytest.mark.parametrize(
    "settings", [{"default_tenant": SLOW}, {"reply": {"quota_on_admitted": True}}], ids=["off", "no quota"]
)
async def test_nothing_is_told_by_default_or_without_a_quota(settings: dict[str, Any]) -> None:
    """It is an option, and there must be something to tell."""
    async with bed(**settings) as b:
        answer = await b.post()
        assert answer.status_code == 200
        assert "ratelimit" not in answer.headers


async def test_the_policy_stays_unsaid_where_limits_are() -> None:
    """`expose_limits` off keeps every bound to itself."""
    reply = {"quota_on_admitted": True, "send_policy": True, "expose_limits": False}
    async with bed(default_tenant=SLOW, reply=reply) as b:
        answer = await b.post()
        assert "ratelimit" in answer.headers
        assert "ratelimit-policy" not in answer.headers


async def test_the_apps_own_header_stands_alone() -> None:
    """Two voices in one field would be nobody's."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"ratelimit", b'"theirs";r=7;t=1')]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async with bed(app, default_tenant=SLOW, reply={"quota_on_admitted": True}) as b:
        assert told(await b.post()) == {"theirs": {"r": 7, "t": 1}}


async def test_a_fault_of_ours_costs_the_header_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer goes on."""
    async with bed(default_tenant=SLOW, reply={"quota_on_admitted": True}) as b:
        monkeypatch.setattr(type(b.runtime.room.gate), "quota_left", explode)
        answer = await b.post()
        assert answer.status_code == 200
        assert "ratelimit" not in answer.headers
        assert b.runtime.faults.count == 1
