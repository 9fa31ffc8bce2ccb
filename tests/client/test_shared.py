"""What the calls of one process do together: cool-downs, their scopes, pacing, budgets, cancellation."""

from __future__ import annotations

import asyncio
import bisect
import threading
import time
from typing import Any

import httpx
import pytest

from tests.client.stacks import STACKS, Scene, Stack, every_stack, until
from tidegate_client import AsyncRetryTransport, RateLimited, RetryPolicy, RetryTransport, Why
from tidegate_client.board import Board
from tidegate_client.testing import FakeClock, Reply, ScriptedServer, answer, break_off, refuse

async_stacks = pytest.mark.parametrize(
    "stack", [stack for stack in STACKS if stack.is_async], ids=lambda stack: stack.name
)


class Bucket:
    """A server with a token bucket, on a fake clock, that takes 50 ms for every answer."""

    def __init__(self, clock: FakeClock, stated: dict[str, str], burst: int = 20) -> None:
        self.headers = {"retry-after": "1"} | stated
        self.clock = clock
        self.burst, self.rate_per_s = burst, 20.0
        self.tokens, self.refilled = float(burst), clock.now
        self.arrivals: list[float] = []
        self.refusals = 0

    async def __call__(self, request: Any) -> Any:
        self.arrivals.append(self.clock.now)
        self.tokens = min(self.burst, self.tokens + (self.clock.now - self.refilled) * self.rate_per_s)
        self.refilled = self.clock.now
        served = self.tokens >= 1
        self.tokens -= served
        self.refusals += not served
        await self.clock.sleep(0.05)
        return httpx.Response(200) if served else httpx.Response(429, headers=self.headers)


def busiest(instants: list[float], span_s: float = 0.1) -> int:
    """The most instants within any span."""
    instants = sorted(instants)
    return max(bisect.bisect_right(instants, at + span_s) - n for n, at in enumerate(instants))


@pytest.mark.parametrize("seed", [7, 8, 9])
@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"ratelimit-policy": '"default";q=20;w=1'},
        {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"},
    ],
    ids=["learnt", "stated by policy", "stated by limit and reset"],
)
async def test_two_hundred_callers_are_no_herd(seed: int, stated: dict[str, str]) -> None:
    """After the first wave: at most 1.1 calls per success, 4 retries in any 100 ms, 10 % over the ideal
    time; whether the server states its rate or not.
    """
    clock = FakeClock(seed=seed)
    server = Bucket(clock, stated)
    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    began = clock.now
    async with httpx.AsyncClient(transport=transport) as client:
        answers = await asyncio.gather(*(client.post("http://engine/") for _ in range(200)))

    assert {each.status_code for each in answers} == {200}
    assert (len(server.arrivals) - 200) / 180 <= 1.1
    assert busiest(server.arrivals[200:]) <= 4
    assert clock.now - began <= 1.1 * 9.0


def test_a_thousand_strangers_are_no_herd() -> None:
    """Clients that share nothing, told the same time: nobody early, no 100 ms with more than 15 % of them."""
    back: list[float] = []
    for seed in range(1000):
        clock = FakeClock(start=0.0, seed=seed)
        server = ScriptedServer(refuse(30), clock=clock)
        transport = RetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
        transport.handle_request(httpx.Request("POST", "http://engine/", content=b"{}"))
        back.append(server.received[1].at)

    assert min(back) >= 30
    assert busiest(back) <= 150


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


async def test_appointments_are_kept_and_strangers_wait_for_the_last() -> None:
    """Each call comes at the time named to it alone; a new one comes after the last of them."""
    clock = FakeClock(uniform=0.5)
    told, came = [3, 9, 6], list[tuple[float, str]]()

    async def server(request: httpx.Request) -> httpx.Response:
        came.append((clock.now, request.headers.get("tidegate-attempt", "1")))
        await clock.sleep(0.01)
        if not told:
            return httpx.Response(200)
        error = {"scope": "class", "reason": "queue_full"}
        return httpx.Response(429, headers={"retry-after": f"{told.pop(0)}"}, json={"error": error})

    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    async with httpx.AsyncClient(transport=transport) as client:
        calls = [asyncio.create_task(client.get("http://engine/")) for _ in range(3)]
        await until(lambda: not told)
        await asyncio.gather(*calls, client.get("http://engine/"))

    assert [attempt for _, attempt in came] == ["1", "1", "1", "2", "2", "2", "1"]
    assert [at - 1000.01 for at, _ in came[3:]] == pytest.approx([3.15, 6.3, 9.45, 9.5], abs=0.01)


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
async def test_unasked_retries_are_bounded_for_the_process(stack: Stack) -> None:
    """A server that is down costs a hundred retries; after that each call fails at its first attempt."""
    scene = Scene(stack, then=break_off(), policy=RetryPolicy(max_attempts=3))
    for _ in range(60):
        with pytest.raises(stack.library.ConnectError):
            await scene.post()

    assert len(scene.server.received) == 60 + 100
    assert scene.board.snapshot(scene.clock.now)[0].retry_budget == 0


@every_stack
async def test_refusals_that_name_a_time_cost_no_budget(stack: Stack) -> None:
    """Doing what the server asks is free."""
    scene = Scene(stack, *[refuse(1) for _ in range(5)])
    await scene.post()

    assert scene.board.snapshot(scene.clock.now)[0].retry_budget == 100


@async_stacks
async def test_a_cancelled_wait_ends_at_once_and_holds_up_nobody(stack: Stack) -> None:
    """Cancelling leaves no task and no place in the line; the next caller goes as if it had not been
    there.
    """
    scene = Scene(stack, refuse(20), refuse(20))
    first, second = (asyncio.create_task(scene.post()) for _ in range(2))
    await until(lambda: sum(state.waiting for state in scene.board.snapshot(scene.clock.now)) == 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert scene.board.snapshot(scene.clock.now)[0].waiting == 1

    assert (await second).status_code == 200
    assert scene.board.snapshot(scene.clock.now)[0].waiting == 0
    assert len(scene.server.received) == 3


@async_stacks
async def test_a_cancelled_attempt_frees_its_place(stack: Stack) -> None:
    """A caller that leaves while its retry is under way gives its place in the slow-start window back."""
    clock, board = FakeClock(uniform=0.5), Board()
    hang = asyncio.Event()
    seen = 0

    async def server(request: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 1:
            return stack.library.Response(429, headers={"retry-after": "1"})
        if seen == 2:
            await hang.wait()
        return stack.library.Response(200)

    policy = RetryPolicy(slow_start=1)
    caller = stack.caller(stack.library.MockTransport(server), clock, board, policy=policy)
    stuck = asyncio.create_task(caller.request("GET", "http://engine/"))
    await until(lambda: seen == 2)
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    before = clock.now

    assert (await caller.request("GET", "http://engine/")).status_code == 200
    assert clock.now - before < 0.5


async def test_no_more_than_the_window_is_under_way_after_a_refusal() -> None:
    """Eight attempts at most have an unknown outcome just after a refusal, whatever the number that waits."""
    clock = FakeClock(seed=3)
    under_way = most = seen = 0

    async def server(request: Any) -> httpx.Response:
        nonlocal under_way, most, seen
        seen += 1
        if seen == 1:
            return httpx.Response(429, headers={"retry-after": "1"})
        under_way += 1
        most = max(most, under_way)
        await clock.sleep(0.9)
        under_way -= 1
        return httpx.Response(429, headers={"retry-after": "1"}) if clock.now < 1010 else httpx.Response(200)

    transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
    async with httpx.AsyncClient(transport=transport) as client:
        first = asyncio.create_task(client.get("http://engine/"))
        await until(lambda: seen)
        await asyncio.sleep(0)
        rest = [asyncio.create_task(client.get("http://engine/")) for _ in range(100)]
        await until(lambda: clock.now >= 1009)
        assert most <= 8
        for task in (first, *rest):
            task.cancel()
        await asyncio.gather(first, *rest, return_exceptions=True)


def test_threads_share_too() -> None:
    """Ten threads join one that waits, in real time: nobody is sent before the time the server named."""
    board, arrivals = Board(), list[float]()

    def server(request: httpx.Request) -> httpx.Response:
        arrivals.append(time.monotonic())
        return (
            httpx.Response(200)
            if len(arrivals) > 1
            else httpx.Response(429, headers={"retry-after-ms": "300"})
        )

    transport = RetryTransport(
        httpx.MockTransport(server), board=board, policy=RetryPolicy(jitter_base_s=0.05)
    )
    with httpx.Client(transport=transport) as client:
        threads = [threading.Thread(target=client.get, args=("http://engine/",)) for _ in range(11)]
        threads[0].start()
        while not arrivals or (len(arrivals) < 2 and not board.snapshot(time.monotonic())[0].waiting):
            time.sleep(0.001)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert len(arrivals) == 12
    assert min(arrivals[1:]) >= arrivals[0] + 0.3


async def test_a_loop_that_stands_still_holds_up_nobody_else() -> None:
    """Twenty tasks are first in line, and their loop is blocked by a call on the same thread: it moves up."""
    clock, board = FakeClock(uniform=0.5), Board()
    server = ScriptedServer(refuse(1), clock=clock)
    around: dict[str, Any] = {"timebase": clock, "board": board}
    inner = httpx.MockTransport(server)
    async with httpx.AsyncClient(transport=AsyncRetryTransport(inner, **around)) as client:
        tasks = [asyncio.create_task(client.get("http://engine/"))]
        await until(lambda: board.snapshot(clock.now) and board.snapshot(clock.now)[0].waiting == 1)
        tasks += [asyncio.create_task(client.get("http://engine/")) for _ in range(19)]
        await asyncio.sleep(0)
        with httpx.Client(transport=RetryTransport(inner, **around)) as blocking:
            assert blocking.get("http://engine/").status_code == 200
        passed_s = server.received[-1].at - server.received[0].at
        await asyncio.gather(*tasks)

    assert 1 <= passed_s < 12


async def test_a_wait_does_not_block_the_loop() -> None:
    """While a call waits, other tasks run."""
    replies = iter([httpx.Response(429, headers={"retry-after-ms": "200"}), httpx.Response(200)])
    transport = AsyncRetryTransport(
        httpx.MockTransport(lambda request: next(replies)),
        board=Board(),
        policy=RetryPolicy(jitter_base_s=0.01),
    )
    turns = 0
    async with httpx.AsyncClient(transport=transport) as client:
        call = asyncio.create_task(client.get("http://engine/"))
        while not call.done():
            await asyncio.sleep(0)
            turns += 1

    assert turns >= 100  # a call alone takes some ten


def test_one_transport_over_several_loops() -> None:
    """A transport made at import works under one event loop after another."""
    clock, board = FakeClock(uniform=0.5), Board()
    for _ in range(2):

        async def main() -> int:
            server = ScriptedServer(refuse(1), clock=clock)
            transport = AsyncRetryTransport(httpx.MockTransport(server), timebase=clock, board=board)
            async with httpx.AsyncClient(transport=transport) as client:
                return (await client.get("http://engine/")).status_code

        assert asyncio.run(main()) == 200


def test_origins_remembered_are_bounded() -> None:
    """However many servers a process talks to, the board keeps the last ones."""
    clock, board = FakeClock(), Board(max_origins=10)
    server = ScriptedServer(then=Reply(200))
    with httpx.Client(
        transport=RetryTransport(httpx.MockTransport(server), timebase=clock, board=board)
    ) as client:
        for number in range(50):
            client.get(f"http://engine-{number}/")

    states = board.snapshot(clock.now)
    assert [state.origin for state in states] == [f"http://engine-{number}" for number in range(40, 50)]
    with pytest.raises(ValueError, match="max_origins is 0"):
        Board(max_origins=0)


def test_the_origin_used_last_is_kept() -> None:
    """What is forgotten is what has not been used for longest, not what was met first."""
    clock, board = FakeClock(), Board(max_origins=2)
    server = ScriptedServer(then=Reply(200))
    with httpx.Client(
        transport=RetryTransport(httpx.MockTransport(server), timebase=clock, board=board)
    ) as client:
        for name in ("a", "b", "a", "c"):
            client.get(f"http://{name}/")

    assert [state.origin for state in board.snapshot(clock.now)] == ["http://a", "http://c"]


@every_stack
async def test_success_gives_budget_back(stack: Stack) -> None:
    """Each answer returns a tenth of a retry."""
    scene = Scene(stack, break_off(), break_off())
    for _ in range(11):
        await scene.get()

    assert scene.board.snapshot(scene.clock.now)[0].retry_budget == pytest.approx(98 + 1.1)
