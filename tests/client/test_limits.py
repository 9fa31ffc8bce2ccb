"""The two options that hold calls back before any refusal: learnt concurrency, and throttling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import AdaptiveConcurrency, AsyncRetryTransport, Guard, RateLimited, RetryPolicy, Why
from tidegate_client.core.concurrency import Limit
from tidegate_client.core.throttle import Throttle
from tidegate_client.testing import Board, FakeClock, answer, refuse


def test_the_limit_grows_by_one_per_window_and_shrinks_by_a_share() -> None:
    """Sixteen let in while all places are used: one place more; a refusal leaves three quarters."""
    limit = Limit(AdaptiveConcurrency(first=16))
    limit.under_way = 16
    for _ in range(17):
        limit.let_in()
    assert limit.places == pytest.approx(17, abs=0.05)
    assert limit.has_room()

    limit.refused()
    assert limit.places == pytest.approx(12.75, abs=0.05)


def test_the_limit_grows_only_when_used_and_keeps_its_bounds() -> None:
    """Idle success teaches nothing; no number of events leaves the bounds."""
    limit = Limit(AdaptiveConcurrency(first=4, least=2, most=5))
    limit.let_in()
    assert limit.places == 4

    limit.under_way = 5
    for _ in range(100):
        limit.let_in()
    assert limit.places == 5
    for _ in range(100):
        limit.refused()
    assert limit.places == 2


@pytest.mark.parametrize("options", [{"least": 0}, {"first": 300}, {"keep": 1.0}, {"first": "3"}])
def test_bad_bounds_are_told(options: dict[str, Any]) -> None:
    """Bounds out of order are an error that shows them."""
    with pytest.raises(ValueError, match="AdaptiveConcurrency"):
        AdaptiveConcurrency(**options)


async def test_no_more_calls_are_under_way_than_were_learnt() -> None:
    """A place is taken until the answer's body has ended; the next caller goes the moment one is free."""
    clock = FakeClock()
    under_way = most = 0

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            nonlocal under_way
            await clock.sleep(1.0)
            yield b"x"
            under_way -= 1

    def server(request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        return httpx.Response(200, stream=Body())

    policy = RetryPolicy(concurrency=AdaptiveConcurrency(first=4, most=4), wait_budget_s=60)
    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board(), policy=policy)
    async with httpx.AsyncClient(transport=transport) as client:
        answers = await asyncio.gather(*(client.get("http://engine/") for _ in range(20)))

    assert {each.content for each in answers} == {b"x"}
    assert most == 4
    assert clock.now == pytest.approx(1005.0)


@every_stack
async def test_places_are_given_back_on_every_way_out(stack: Stack) -> None:
    """Refusals, errors and answers all free their place: one place serves any number of calls."""
    policy = RetryPolicy(concurrency=AdaptiveConcurrency(first=1, most=1), max_attempts=2, wait_budget_s=5)
    scene = Scene(stack, refuse(1), answer(status=500), refuse(90), policy=policy)
    assert (await scene.get()).status_code == 500
    with pytest.raises(RateLimited):
        await scene.get()
    scene.clock.advance(100)

    for _ in range(5):
        assert (await scene.get()).status_code == 200


@every_stack
async def test_whoever_takes_a_place_gives_it_back(stack: Stack) -> None:
    """The limit is the origin's: a transport that asked for none shares it, and frees its places too."""
    clock, board, library = FakeClock(), Board(), stack.library
    server = library.MockTransport(lambda _: library.Response(200, stream=library.ByteStream(b"x")))
    learning = RetryPolicy(concurrency=AdaptiveConcurrency(first=1, most=1))
    callers = [stack.caller(server, clock, board, policy=policy) for policy in (learning, RetryPolicy())]

    for _ in range(3):
        for caller in callers:
            assert (await caller.request("GET", "http://engine/")).content == b"x"


@every_stack
async def test_a_place_is_given_back_when_the_refusal_cannot_be_read(stack: Stack) -> None:
    """Whatever ends a call between its refusal and the decision about it, its place is free again."""
    library, clock, sent = stack.library, FakeClock(), []

    class Interrupted(BaseException):
        """As a cancellation, or Ctrl-C."""

    class Body(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            raise Interrupted

        def __aiter__(self) -> AsyncIterator[bytes]:
            raise Interrupted

    def serve(request: Any) -> Any:
        sent.append(clock.now)
        return library.Response(429, stream=Body()) if len(sent) == 1 else library.Response(200)

    policy = RetryPolicy(concurrency=AdaptiveConcurrency(first=1, most=1), wait_budget_s=60)
    caller = stack.caller(library.MockTransport(serve), clock, policy=policy)
    with pytest.raises(Interrupted):
        await caller.request("GET", "http://engine/")

    assert (await caller.request("GET", "http://engine/")).status_code == 200


def test_a_guard_gives_its_place_back() -> None:
    """A guarded function holds its place while it runs."""
    policy = RetryPolicy(concurrency=AdaptiveConcurrency(first=1, most=1))
    guarded = Guard("https://api.example", policy=policy, timebase=FakeClock(), board=Board())(lambda: "ok")

    assert [guarded() for _ in range(3)] == ["ok"] * 3


def test_throttling_follows_the_formula() -> None:
    """Nothing is turned down while half the calls are let in; all refused, nearly everything is."""
    throttle = Throttle(2.0)
    for _ in range(100):
        assert not throttle.turns_down(0.0, 0.0)
        throttle.let_in(0.0)
    refused = Throttle(2.0)
    turned = [refused.turns_down(0.0, share / 100) for share in range(100)]

    assert not turned[0]
    assert sum(turned) > 40
    assert refused.turns_down(0.0, 100 / 101 - 0.001)
    assert not refused.turns_down(500.0, 0.5)


@every_stack
async def test_a_throttled_call_is_not_sent(stack: Stack) -> None:
    """With a server that refuses everything, calls come to fail without being sent, and say so."""
    policy = RetryPolicy(throttle_k=2, max_attempts=1, max_cooldown_s=0)
    scene = Scene(stack, then=refuse(1), policy=policy)
    whys = []
    for _ in range(10):
        with pytest.raises(RateLimited) as caught:
            await scene.get()
        whys.append(caught.value.why)
        scene.clock.advance(2)

    assert whys[0] is Why.ATTEMPTS
    assert whys[-1] is Why.THROTTLED
    assert len(scene.server.received) == whys.count(Why.ATTEMPTS)


@every_stack
async def test_a_refusal_frees_what_the_call_held_elsewhere(stack: Stack) -> None:
    """A class is refused while its calls pass the whole origin's line: their places there are free again."""
    limited = RetryPolicy(concurrency=AdaptiveConcurrency(first=1, most=1), max_attempts=2)
    scene = Scene(stack, refuse(1, scope="class"), refuse(1, scope="class"), policy=limited)
    with pytest.raises(RateLimited):
        await scene.post()

    assert (await scene.post()).status_code == 200
    assert (await scene.post()).status_code == 200


@every_stack
async def test_throttling_counts_those_that_waited(stack: Stack) -> None:
    """An attempt let in after a wait counts as accepted, as one that went at once does."""
    scene = Scene(stack, refuse(1), policy=RetryPolicy(throttle_k=1.1), uniform=0.6)
    await scene.post()
    for _ in range(5):
        assert (await scene.post()).status_code == 200
