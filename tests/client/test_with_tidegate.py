"""Both halves together: a real gate before a real app, and what its callers see of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serving import serving
from tidegate import AdmissionMiddleware, Settings
from tidegate_client import AsyncClient, RateLimited, RetryPolicy, WaitEvent

BODY = {"model": "m", "prompt": "hi", "max_tokens": 1}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


pytestmark = pytest.mark.usefixtures("own_board")


@contextlib.asynccontextmanager
async def gate(requests_per_s: float) -> AsyncIterator[str]:
    """A gate that gives everybody so much after two requests at once."""
    quota = {"requests_per_s": requests_per_s, "request_burst": 2}
    gated = AdmissionMiddleware(app, settings=Settings.load(default_tenant=quota), probe=lambda: 0.1)
    async with serving(gated) as url:
        yield url


async def test_ten_callers_get_ten_appointments_and_keep_them() -> None:
    """Refused by quota, each caller is told an instant of its own, comes then, and is let in."""
    events: list[WaitEvent] = []
    async with (
        gate(requests_per_s=4) as url,
        AsyncClient(base_url=url, on_wait=events.append, timeout=60) as client,
    ):
        answers = await asyncio.gather(*(client.post("/v1/completions", json=BODY) for _ in range(10)))

    assert [answer.status_code for answer in answers] == [200] * 10
    assert 0 < len(events) <= 8, "a slow machine's last callers find tokens that have come back"
    assert len({event.call_id for event in events}) == len(events)
    assert {event.reason for event in events} == {"rate_limited"}


async def test_an_impatient_caller_is_told_when() -> None:
    """With no time to wait, the typed error has the gate's exact time, reason and scope."""
    policy = RetryPolicy(wait_budget_s=0)
    async with (
        gate(requests_per_s=0.01) as url,
        AsyncClient(base_url=url, policy=policy, timeout=60) as client,
    ):
        for _ in range(2):
            await client.post("/v1/completions", json=BODY)
        ends = await asyncio.gather(
            *(client.post("/v1/completions", json=BODY) for _ in range(3)), return_exceptions=True
        )

    refused = [end for end in ends if isinstance(end, RateLimited)]
    assert refused
    for error in refused:
        assert error.retry_after is not None
        assert 0 < error.retry_after <= 300
        assert (error.reason, error.scope) == ("rate_limited", "tenant")
