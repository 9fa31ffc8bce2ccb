"""A call that is cancelled, while it waits or is under way, leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.stacks import Scene, Stack, async_stacks, until
from tidegate_client import RetryPolicy
from tidegate_client.board import Board
from tidegate_client.testing import FakeClock, refuse


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
