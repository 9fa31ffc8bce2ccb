"""httpx under trio, as httpx itself offers it, in real time before a real server."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import httpx2
import pytest

import tidegate_client
import tidegate_client.httpx2
from tests.client.real_server import Line, ScriptApp, busy
from tidegate_client import RetryPolicy, WaitFeed
from tidegate_client.testing import Board
from tidegate_client.timebase import REAL_TIME

trio: Any = pytest.importorskip("trio")

QUICK = RetryPolicy(jitter_base_s=0.01, wait_budget_s=60)
BOTH = pytest.mark.parametrize(
    ("library", "client_of"),
    [(httpx, tidegate_client.AsyncClient), (httpx2, tidegate_client.httpx2.AsyncClient)],
    ids=["httpx", "httpx2"],
)


def own(test: str, library: Any) -> dict[str, str]:
    """A credential of the test's own: nothing that another one was told holds for it."""
    return {"authorization": f"{test} {library.__name__} on trio"}


@BOTH
def test_a_refusal_is_waited_for(engine: ScriptApp, library: Any, client_of: Any) -> None:
    """And so are those behind it, in line."""
    engine.script += [Line(429, {"retry-after-ms": "200"}, {}), Line(body="served"), Line(body="served")]
    answers: list[Any] = []

    async def main() -> None:
        async with client_of(policy=QUICK, headers=own("a refusal", library)) as client:

            async def ask() -> None:
                answers.append((await client.get(engine.url)).json())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                nursery.start_soon(ask)

    trio.run(main)
    assert answers == ["served", "served"]
    assert engine.received[-1][0] - engine.received[0][0] >= 0.2


@BOTH
def test_a_deadline_ends_an_attempt(engine: ScriptApp, library: Any, client_of: Any) -> None:
    """As a whole, and with the library's own error."""
    engine.script += [Line(pieces=(b"a",), pause_s=0.01), Line(429, {"retry-after-ms": "50"}, {})]

    async def main() -> None:
        policy = RetryPolicy(deadline_s=60)
        async with client_of(policy=policy, headers=own("a deadline", library)) as client:
            assert (await client.get(engine.url)).content == b"a"
            assert (await client.get(engine.url)).status_code == 200
        inner = library.MockTransport(lambda _: trio.sleep_forever())
        module = tidegate_client if library is httpx else tidegate_client.httpx2
        transport = module.AsyncRetryTransport(inner, policy=RetryPolicy(deadline_s=0.05), board=Board())
        async with library.AsyncClient(transport=transport) as client:
            with pytest.raises(library.ReadTimeout, match=r"deadline_s=0\.05"):
                await client.get("http://silent/")

    trio.run(main)


def test_whoever_leaves_waits_no_more(engine: ScriptApp) -> None:
    """A cancelled scope ends the wait at once, and nothing is sent for it."""
    engine.script += [busy(30_000)]
    feed = WaitFeed()

    async def main() -> None:
        headers = own("leaving", httpx)
        async with tidegate_client.AsyncClient(policy=QUICK, on_wait=feed, headers=headers) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.get, engine.url)
                while not feed.waiting(0.0):
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            assert feed.waiting(0.0) == []

    trio.run(main)
    assert len(engine.received) == 1


def test_a_task_is_woken_from_any_thread() -> None:
    """From its own run, from another thread, and by nobody once the run has ended."""
    signals: list[Any] = []

    async def main() -> None:
        signals.append(REAL_TIME.loop_signal())
        signals[0].set()
        await REAL_TIME.wait_async(signals[0], 60)
        waker = threading.Thread(target=signals[0].set)
        waker.start()
        await REAL_TIME.wait_async(signals[0], 60)
        waker.join()
        await REAL_TIME.wait_async(signals[0], 0.001)

    trio.run(main)
    waker = threading.Thread(target=signals[0].set)
    waker.start()
    waker.join()
