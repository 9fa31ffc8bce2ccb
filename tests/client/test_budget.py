"""The budget of retries that nobody asked for."""

from __future__ import annotations

import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client import RetryPolicy
from tidegate_client.testing import break_off, refuse


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


@every_stack
async def test_success_gives_budget_back(stack: Stack) -> None:
    """Each answer returns a tenth of a retry."""
    scene = Scene(stack, break_off(), break_off())
    for _ in range(11):
        await scene.get()

    assert scene.board.snapshot(scene.clock.now)[0].retry_budget == pytest.approx(98 + 1.1)
