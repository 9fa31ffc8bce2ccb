"""The ways through the client that few calls take: every one ends where it should."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.client.stacks import STACKS, Scene, Stack, every_stack, until
from tidegate_client import AdaptiveConcurrency, Guard, RateLimited, RetryPolicy, Why
from tidegate_client.core.policy import RetryPolicy as CorePolicy
from tidegate_client.errors import RateLimited as Error
from tidegate_client.fields import allowance_from
from tidegate_client.origins import Origin
from tidegate_client.testing import Board, FakeClock, refuse

async_stacks = pytest.mark.parametrize(
    "stack", [each for each in STACKS if each.is_async], ids=lambda stack: stack.name
)
sync_stacks = pytest.mark.parametrize(
    "stack", [each for each in STACKS if not each.is_async], ids=lambda stack: stack.name
)


@async_stacks
async def test_a_wait_that_grows_beyond_the_budget_ends_the_call(stack: Stack) -> None:
    """Told 5 s, a call waits; a sibling is then told 500 s, and the first ends at once with that time."""
    clock, asked = FakeClock(uniform=0.5), ["5", "500"]
    sent = 0

    async def serve(request: Any) -> Any:
        nonlocal sent
        sent += 1
        retry_after = asked.pop(0)
        await clock.sleep(1.0 if retry_after == "500" else 0.1)
        return stack.library.Response(429, headers={"retry-after": retry_after})

    caller = stack.caller(stack.library.MockTransport(serve), clock, policy=RetryPolicy(wait_budget_s=60))
    for call in [asyncio.create_task(caller.request("POST", "http://engine/")) for _ in range(2)]:
        with pytest.raises(RateLimited) as caught:
            await call
        assert caught.value.why is Why.OVER_BUDGET
        assert caught.value.retry_after == pytest.approx(500, abs=1.1)
        assert caught.value.response.status_code == 429
    assert sent == 2
    assert clock.now == pytest.approx(1001.0)


@sync_stacks
async def test_a_thread_whose_wait_is_beyond_the_budget_by_then_ends_too(stack: Stack) -> None:
    """While a call is under way, another is told 500 s: the 5 s of its own refusal are not enough."""
    sent = 0

    def serve(request: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 2:
            return stack.library.Response(429, headers={"retry-after": "500"})
        with pytest.raises(RateLimited):
            caller.client.post("http://engine/")
        return stack.library.Response(429, headers={"retry-after": "5"})

    policy, transport = RetryPolicy(wait_budget_s=60), stack.library.MockTransport(serve)
    caller = stack.caller(transport, FakeClock(), policy=policy)
    with pytest.raises(RateLimited) as caught:
        await caller.request("POST", "http://engine/")
    assert caught.value.why is Why.OVER_BUDGET
    assert caught.value.retry_after == pytest.approx(500, abs=1.1)
    assert sent == 2


@every_stack
async def test_a_body_that_cannot_be_sent_twice_is_not_after_a_broken_connection_either(stack: Stack) -> None:
    """The library may have read some of a generator before it found no connection."""
    tries = []

    class Unreachable:
        def handle_request(self, request: Any) -> Any:
            tries.append(request)
            raise stack.library.ConnectError("refused", request=request)

        async def handle_async_request(self, request: Any) -> Any:
            self.handle_request(request)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"once"

    caller, content = (
        stack.caller(Unreachable(), FakeClock()),
        pieces() if stack.is_async else iter([b"once"]),
    )
    with pytest.raises(stack.library.ConnectError):
        await caller.request("POST", "http://engine/", content=content)
    assert len(tries) == 1


@every_stack
async def test_a_wait_longer_than_the_longest_silence_is_kept(stack: Stack) -> None:
    """`max_cooldown_s` bounds what the others wait; who was told more itself waits all of it."""
    scene = Scene(stack, refuse(30), policy=RetryPolicy(max_cooldown_s=2))
    await scene.post()

    assert scene.gaps[0] >= 30


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


def test_the_lanes_of_one_origin_are_bounded() -> None:
    """The sixty-fifth model takes the place of the one that has been quiet the shortest; with callers in all
    of them it goes with the whole origin.
    """
    from tidegate_client.core.lane import Ticket

    origin = Origin("http://engine", CorePolicy())
    for number in range(64):
        origin.part(("model", f"m{number}")).hold(0.0, 100.0 - number, 1.0, 0.5)
    origin.part(("model", "new"))
    assert ("model", "m63") not in origin.parts
    assert ("model", "m0") in origin.parts
    assert len(origin.parts) == 64

    for order, lane in enumerate(origin.parts.values()):
        lane.enter(Ticket(order))
    assert origin.part(("model", "newer")) is origin.lane


@async_stacks
async def test_origins_with_callers_waiting_are_kept(stack: Stack) -> None:
    """Whoever waits is not forgotten, however many origins come by; those are served and not remembered."""
    scene, board = Scene(stack, refuse(5), refuse(5)), Board(max_origins=2)
    caller = stack.caller(stack.library.MockTransport(scene.server), scene.clock, board)
    waiting = [asyncio.create_task(caller.request("POST", f"http://engine-{number}/")) for number in range(2)]
    await until(lambda: sum(state.waiting for state in board.snapshot(scene.clock.now)) == 2)
    for number in range(2, 5):
        assert (await caller.request("POST", f"http://engine-{number}/")).status_code == 200

    names = [state.origin for state in board.snapshot(scene.clock.now)]
    assert names == ["http://engine-0", "http://engine-1"]
    assert {each.status_code for each in await asyncio.gather(*waiting)} == {200}


@every_stack
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"model": 7}'])
async def test_a_model_that_cannot_be_read_is_one_of_no_name(stack: Stack, content: bytes) -> None:
    """A refusal of a model holds up the other calls whose model nobody can tell, and nobody raises."""
    scene = Scene(stack, refuse(3, scope="model"))
    await scene.post(json=None, content=content)
    await scene.post(json=None, content=content)

    assert scene.gaps[0] >= 3


def test_a_policy_item_that_is_neither_is_left_out() -> None:
    """A decimal or an inner list among the policies says nothing; the others count."""
    allowance = allowance_from([("RateLimit-Policy", '1.5;w=1, (1 2);w=3, "a";q=9;w=60')], None, 0.0)

    assert allowance is not None
    assert allowance.quota == 9


def test_a_time_beyond_the_calendar_is_its_end() -> None:
    """No wait is too long to be an instant."""
    error = Error(why=Why.OVER_BUDGET, retry_after=1e18, wall_now=0.0)

    assert error.retry_at == dt.datetime.max.replace(tzinfo=dt.timezone.utc)


def test_a_guarded_block_that_fails_with_an_answer_of_another_kind() -> None:
    """A 500 inside a turn is no refusal: it passes, and the next turn does not wait."""

    class Failed(Exception):
        response = httpx.Response(500)

    clock = FakeClock()
    guard = Guard("https://api.example", timebase=clock, board=Board())
    with pytest.raises(Failed), guard.turn():
        raise Failed
    with guard.turn():
        assert clock.waits == []


@every_stack
@pytest.mark.parametrize(
    "body",
    [
        {"chunks": [b'{"error": '], "breaks": True},
        {"chunks": [b"no gzip"], "headers": {"content-encoding": "gzip"}},
    ],
    ids=["broken off", "not what it says"],
)
async def test_a_refusal_whose_body_cannot_be_read_is_obeyed(stack: Stack, body: dict[str, Any]) -> None:
    """Its headers count all the same."""
    library, clock, seen = stack.library, FakeClock(uniform=0.5), []

    class Body(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            yield from body["chunks"]
            if body.get("breaks"):
                raise library.ReadError("gone")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self:
                yield chunk

    def serve(request: Any) -> Any:
        seen.append(clock.now)
        if len(seen) > 1:
            return library.Response(200, content=b"ok")
        headers = {"retry-after": "7", **body.get("headers", {})}
        return library.Response(429, headers=headers, stream=Body())

    caller = stack.caller(library.MockTransport(serve), clock)
    assert (await caller.request("POST", "http://engine/")).status_code == 200
    assert seen[1] - seen[0] >= 7


@every_stack
async def test_an_event_stream_that_ends_without_a_word_is_delivered(stack: Stack) -> None:
    """With `retry_streams`, an end in good order is the server's answer, empty as it is."""
    headers = {"content-type": "text/event-stream"}

    def serve(request: Any) -> Any:
        return stack.library.Response(200, headers=headers, stream=stack.library.ByteStream(b": nothing\n\n"))

    caller = stack.caller(
        stack.library.MockTransport(serve), FakeClock(), policy=RetryPolicy(retry_streams=True)
    )
    assert (await caller.request("POST", "http://engine/")).content == b": nothing\n\n"
