"""The servers that one process remembers."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.client.stacks import Scene, Stack, async_stacks, until
from tidegate_client import RetryTransport
from tidegate_client.core.policy import RetryPolicy as CorePolicy
from tidegate_client.origins import Origin
from tidegate_client.testing import Board, FakeClock, Reply, ScriptedServer, refuse


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
