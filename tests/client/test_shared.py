"""What one call was told holds for all calls of the process that it covers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.stacks import Scene, Stack, async_stacks, every_stack, until
from tidegate_client import RateLimited, RetryPolicy, Why
from tidegate_client.testing import answer, refuse


@async_stacks
async def test_siblings_wait_for_what_one_was_told(stack: Stack) -> None:
    """After one refusal nobody else of the same credential goes before the time, and nobody is told it
    again.
    """
    scene = Scene(stack, refuse(5), uniform=None)
    first = asyncio.create_task(scene.post())
    await until(lambda: scene.events)
    began = scene.server.received[0].at
    await asyncio.gather(first, *(scene.post() for _ in range(30)))

    later = [request.at - began for request in scene.server.received[1:]]
    assert len(later) == 31
    assert min(later) >= 5
    assert [event.reason for event in scene.events] == ["queue_full"] * 31


@async_stacks
async def test_the_latest_time_holds_for_all(stack: Stack) -> None:
    """Two refusals, sixty seconds and one: both calls keep the sixty."""
    scene = Scene(stack, refuse(60), refuse(1))
    await asyncio.gather(scene.post(), scene.post())

    assert all(request.at - scene.server.received[0].at >= 60 for request in scene.server.received[2:])


BATCH, VIP = {"x-tidegate-priority": "batch"}, {"x-tidegate-priority": "vip"}


@every_stack
@pytest.mark.parametrize(
    ("scope", "refused", "spared"),
    [
        ("class", {"headers": BATCH}, {"headers": VIP}),
        ("class", {"headers": BATCH}, {}),
        ("model", {"json": {"model": "large"}}, {"json": {"model": "small"}}),
        ("tenant", {"headers": {"authorization": "Bearer a"}}, {"headers": {"authorization": "Bearer b"}}),
        ("tenant", {"headers": {"x-api-key": "a"}}, {"headers": {"x-api-key": "b"}}),
        ("tenant", {"url": "http://engine/"}, {"url": "http://engine:8001/"}),
        ("request", {}, {}),
    ],
)
async def test_a_refusal_holds_up_only_what_it_covers(
    stack: Stack, scope: str, refused: dict[str, Any], spared: dict[str, Any]
) -> None:
    """A class, a model, a credential, an origin or a single request waits; what it does not cover goes at
    once.
    """
    scene = Scene(stack, refuse(50, scope=scope), policy=RetryPolicy(max_attempts=1))
    with pytest.raises(RateLimited):
        await scene.post(**refused)
    began = scene.clock.now
    await scene.post(**spared)
    assert scene.clock.now == began

    if scope != "request":
        await scene.post(**refused)
        assert scene.clock.now - began >= 50


@every_stack
async def test_beyond_the_budget_siblings_fail_at_once_and_unsent(stack: Stack) -> None:
    """While an origin asks for more silence than a caller has, nothing is sent and the error says how
    long.
    """
    scene = Scene(stack, refuse(300))
    with pytest.raises(RateLimited):
        await scene.post()
    scene.clock.advance(100)

    with pytest.raises(RateLimited) as caught:
        await scene.post()

    error = caught.value
    assert (error.why, error.attempts) == (Why.COOLING_DOWN, 0)
    assert error.retry_after == pytest.approx(200, abs=1.5)
    assert error.response.status_code == 429
    assert len(scene.server.received) == 1


@every_stack
async def test_no_refusal_silences_the_others_for_more_than_ten_minutes(stack: Stack) -> None:
    """A wait of eleven days is that call's error; others probe again after max_cooldown_s."""
    scene = Scene(stack, refuse(1_000_000))
    with pytest.raises(RateLimited) as caught:
        await scene.post()
    assert caught.value.retry_after == 1_000_000

    scene.clock.advance(601)
    assert (await scene.post()).status_code == 200


@every_stack
async def test_nothing_left_holds_the_next_call(stack: Stack) -> None:
    """A good answer that says nothing remains for 10 s: the next call waits for them; a cached one says
    nothing.
    """
    scene = Scene(stack, answer(ratelimit='"default";r=0;t=10'), answer(ratelimit='"default";r=5;t=10'))
    await scene.get()
    await scene.get()
    assert scene.gaps == [pytest.approx(10.5)]

    cached = Scene(stack, answer(ratelimit='"default";r=0;t=10', age="30"))
    await cached.get()
    await cached.get()
    assert cached.gaps == [0]


@every_stack
async def test_a_wait_longer_than_the_longest_silence_is_kept(stack: Stack) -> None:
    """`max_cooldown_s` bounds what the others wait; who was told more itself waits all of it."""
    scene = Scene(stack, refuse(30), policy=RetryPolicy(max_cooldown_s=2))
    await scene.post()

    assert scene.gaps[0] >= 30
