"""Clouds that say the wait in the body only, from their answer to the caller's next attempt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import RateLimited, RetryPolicy, Why
from tidegate_client.testing import Reply, answer


def google(message: str, retry_delay: str, quota: str, status: int = 429) -> Reply:
    """A refusal as the Gemini API words it."""
    details: list[dict[str, Any]] = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": retry_delay},
    ]
    error = {"code": status, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}
    return Reply(status, json={"error": error})


def openai(message: str, status: int = 429) -> Reply:
    """A refusal as OpenAI and Azure word it."""
    return Reply(
        status, json={"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}
    )


@every_stack
async def test_the_time_in_the_body_is_a_floor(stack: Stack) -> None:
    """Nobody comes back before it, and the listener is told where it stood."""
    refusals = [
        (google("Please retry in 38.922534355s.", "38s", "GenerateRequestsPerMinute"), 38.922, "body"),
        (openai("Limit 30000, Used 29937. Please try again in 7.76s."), 7.76, "message"),
    ]
    for refusal, wait_s, source in refusals:
        scene = Scene(stack, refusal)
        assert (await scene.post()).status_code == 200

        assert wait_s <= scene.gaps[0] <= wait_s + 1.1
        assert [event.source for event in scene.events[:1]] == [source]


@every_stack
async def test_a_quota_of_the_day_is_told_at_once(stack: Stack) -> None:
    """Google names a minute beside it, after which nothing has changed: no attempt is spent on it."""
    scene = Scene(stack, google("Please retry in 59.6s.", "59s", "GenerateRequestsPerDayPerProjectPerModel"))

    with pytest.raises(RateLimited) as caught:
        await scene.post()

    assert caught.value.why is Why.QUOTA
    assert caught.value.reason == "RESOURCE_EXHAUSTED"
    assert len(scene.server.received) == 1


@every_stack
async def test_a_sentence_does_not_prove_a_refusal_before_work(stack: Stack) -> None:
    """A 503 is sent again when its headers or its data say when; a sentence may come from anywhere."""
    worded = openai("The service is restarting. Please retry after 5 seconds.", status=503)
    scene = Scene(stack, worded)
    assert (await scene.post()).status_code == 503
    assert len(scene.server.received) == 1

    scene = Scene(stack, google("overloaded", "5s", "", status=503))
    assert (await scene.post()).status_code == 200

    scene = Scene(stack, worded, answer(), policy=RetryPolicy(retry_statuses=frozenset({503})))
    assert (await scene.get()).status_code == 200
    assert scene.gaps[0] >= 5
