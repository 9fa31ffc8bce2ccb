"""Nobody is queued beyond what its class and the caller itself allow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.bed import App, Level, bed, until
from tidegate.core.decisions import Queued

STREAM = {"prompt": "x", "max_tokens": 16, "stream": True}
SEATED = {"max_sequences": 1}


async def latest_start_s(headers: dict[str, str], body: object = None, **settings: Any) -> float:
    """Seconds for which a request with these headers may be queued behind a full gate."""
    offered: list[Queued] = []
    async with bed(kv=SEATED, **settings) as b:
        b.app.go.clear()
        holder = b.send()
        await until(lambda: b.app.running == 1)
        offer = b.runtime.room.offer

        def watched(ask: object) -> object:
            decision = offer(ask)
            if isinstance(decision, Queued):
                offered.append(decision)
            return decision

        b.runtime.room.offer = watched
        now = b.runtime.room._clock()
        waiting = b.send(body, headers=headers)
        await until(lambda: len(offered) == 1 or waiting.done())
        b.app.go.set()
        await asyncio.gather(holder, waiting)
    return float(offered[0].latest_start_at - now)


@pytest.mark.parametrize(
    ("headers", "body", "least_s", "most_s"),
    [
        ({}, None, 29, 31),
        ({"prefer": "wait=10"}, None, 8, 10.5),
        ({"prefer": "respond-async, wait=10"}, STREAM, 8, 10.5),
        ({"prefer": "wait=3600"}, None, 29, 31),
        ({"x-stainless-read-timeout": "600"}, None, 29, 31),
        ({"x-stainless-read-timeout": "600"}, STREAM, 29, 31),
        ({"x-stainless-read-timeout": "10"}, STREAM, 8, 9.5),
        ({"x-stainless-read-timeout": "10"}, None, 8, 10.5),
        ({"x-stainless-read-timeout": "10", "prefer": "wait=5"}, None, 3, 5.5),
        ({"x-stainless-read-timeout": "nonsense", "prefer": "wait=soon"}, None, 29, 31),
        ({"x-stainless-read-timeout": "-1"}, None, 29, 31),
    ],
)
async def test_the_least_of_class_preference_and_read_timeout_bounds_the_queue(
    headers: dict[str, str], body: object, least_s: float, most_s: float
) -> None:
    """The SDKs send 600 s by themselves: that must not outbid the class's 30 s."""
    assert least_s <= await latest_start_s(headers, body) <= most_s


async def test_a_stream_that_is_kept_alive_is_not_bound_by_the_read_timeout() -> None:
    """Comments end the silence that the time-out measures."""
    keepalive = {"after_s": 5.0}
    assert await latest_start_s({"x-stainless-read-timeout": "10"}, STREAM, keepalive=keepalive) > 29


async def test_q2_who_may_wait_only_so_long_leaves_then_with_a_code() -> None:
    """Q2: at the end of its patience, with a reason and a time, and the app never called."""
    async with bed(kv=SEATED) as b:
        b.app.go.clear()
        holder = b.send()
        await until(lambda: b.app.running == 1)
        loop = asyncio.get_running_loop()
        started = loop.time()
        response = await b.post(headers={"prefer": "wait=1"})
        assert 0.5 < loop.time() - started < 20
        assert response.status_code == 429
        assert response.json()["error"]["reason"] in ("wait_expired", "wait_too_long")
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["preference-applied"] == "wait=1"
        assert b.app.started == 1
        b.app.go.set()
        await holder


async def test_no_patience_at_all_is_no_reason_to_refuse_while_there_is_room() -> None:
    """`Prefer: wait=0` never queues, but starts at once if it may."""
    async with bed() as b:
        response = await b.post(headers={"prefer": "wait=0"})
        assert response.status_code == 200
        assert response.headers["preference-applied"] == "wait=0"


async def test_the_preference_is_acknowledged_only_where_it_was_given() -> None:
    """On the app's answers too, once, beside the app's own headers."""
    async with bed() as b:
        assert "preference-applied" not in (await b.post()).headers
        applied = await b.post(headers={"prefer": "wait=9"})
        assert applied.headers.get_list("preference-applied") == ["wait=9"]
        assert applied.headers["content-type"] == "application/json"


async def test_the_vip_is_bound_by_its_own_class() -> None:
    """The maximum wait is the class's, not the default's."""
    classes = [{"name": "vip", "max_wait_s": 0.3}, {"name": "standard", "max_wait_s": 30}]
    tenants = [{"name": "gold", "keys": ["gold"], "priority_class": "vip"}]
    level = Level(kv_usage=0.97)
    async with bed(App(), level, classes=classes, tenants=tenants) as b:
        refused = await b.post(headers={"authorization": "Bearer gold"})
        assert refused.status_code == 429
        assert b.app.started == 0
