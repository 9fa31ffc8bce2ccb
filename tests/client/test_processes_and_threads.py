"""One process's calls from several threads, in forked children, and errors on their way between processes."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import httpx
import pytest

from tests.client.stacks import Scene, Stack, every_stack, until
from tidegate_client import AsyncRetryTransport, Guard, RateLimited, RetryPolicy, RetryTransport, WaitFeed
from tidegate_client.board import Board
from tidegate_client.core.events import WaitEvent
from tidegate_client.testing import FakeClock, ScriptedServer, refuse

URL = "http://server/"


def refused_for_an_hour() -> None:
    """A call whose refusal stands."""
    server = httpx.MockTransport(lambda request: httpx.Response(429, headers={"retry-after": "3600"}))
    with httpx.Client(transport=RetryTransport(server, board=Board())) as client:
        client.post(URL, json={"model": "m"})


@every_stack
async def test_a_refusal_that_stands_can_be_pickled_and_copied(stack: Stack) -> None:
    """With all that it says, and still of its library's own type."""
    with pytest.raises(RateLimited) as caught:
        await Scene(stack, refuse(3600)).post()
    error: Any = caught.value
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.args) == (str(error), error.args)
        for name in ("why", "retry_after", "retry_at", "reason", "scope", "attempts"):
            assert getattr(other, name) == getattr(error, name)
        assert other.response.status_code == 429
        assert str(other.request.url) == str(error.request.url)


def test_a_guards_refusal_leaves_the_functions_own_objects_at_home() -> None:
    """They may be anything, such as a lock."""

    class Refused(Exception):
        status_code = 429
        headers = {"retry-after": "3600"}  # noqa: RUF012
        lock = threading.Lock()

    @Guard("https://server", board=Board())
    def ask() -> None:
        error = Refused()
        error.own_lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(RateLimited) as caught:
        ask()
    other = pickle.loads(pickle.dumps(caught.value))
    assert other.retry_after == 3600
    assert other.response.status_code == 429


def test_a_pool_of_processes_survives_a_refusal() -> None:
    """The error arrives as itself, and the pool goes on."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(refused_for_an_hour).exception(timeout=200)
        assert isinstance(error, RateLimited)
        assert error.retry_after == 3600
        assert pool.submit(abs, -1).result(timeout=200) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_forked_while_another_thread_is_in_the_board_does_not_hang() -> None:
    """The lock and the line of the parent stay in the parent."""
    board, feed = Board(), WaitFeed()
    event = WaitEvent("r", 1.0, 1.0, 1.0, 1, 2, "o", "tenant", "none", 1)
    held, release = threading.Event(), threading.Event()

    def inside() -> None:
        with board._lock, feed._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=inside)
    thread.start()
    held.wait()
    try:
        assert _in_child(lambda: _calls(board)) == 0
        assert _in_child(lambda: feed(event)) == 0
    finally:
        release.set()
        thread.join()
    _calls(board)


def _calls(board: Board) -> None:
    server = httpx.MockTransport(lambda request: httpx.Response(200))
    with httpx.Client(transport=RetryTransport(server, board=board)) as client:
        client.get(URL)


def _in_child(work: Callable[[], Any]) -> int:
    """The status with which a forked child ends that has 200 s for it; it must not return into pytest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(200)
        try:
            work()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_slow_listener_holds_up_nobody_else() -> None:
    """It runs between asking and sleeping: whoever is let go or becomes the first in that time is told.

    Without that the line stands still until the listener's own caller gives up.
    """
    board, policy = Board(), RetryPolicy(wait_budget_s=30.0)
    gate, refused, answered = threading.Event(), threading.Event(), []

    def server(request: httpx.Request) -> httpx.Response:
        if not gate.is_set():
            refused.set()
            return httpx.Response(429, headers={"retry-after": "1", "retry-after-ms": "300"})
        answered.append(request.url.path)
        return httpx.Response(200)

    is_told = threading.Event()

    def slow(event: WaitEvent) -> None:
        is_told.set()
        while len(answered) < 1:  # the first in line goes while this one listens
            if not gate.wait(0.001):
                continue
            threading.Event().wait(0.001)

    def call(path: str, listener: Any) -> None:
        transport = RetryTransport(httpx.MockTransport(server), board=board, policy=policy, on_wait=listener)
        with httpx.Client(transport=transport) as client:
            client.get(URL + path)

    threads = [threading.Thread(target=call, args=("first", None), daemon=True)]
    threads[0].start()
    assert refused.wait(60)
    threads.append(threading.Thread(target=call, args=("slow", slow), daemon=True))
    threads[1].start()
    assert is_told.wait(60)
    threads.append(threading.Thread(target=call, args=("last", None), daemon=True))
    threads[2].start()
    gate.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), answered
    assert sorted(answered) == ["/first", "/last", "/slow"]


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
