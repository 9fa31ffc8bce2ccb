"""A listener that takes its time holds the line up for that time at most, and its own call for no more."""

from __future__ import annotations

import httpx
import pytest

from tests.client.stacks import Scene, Stack, every_stack
from tidegate_client.call import Call
from tidegate_client.drivers import AsyncDriver, SyncDriver
from tidegate_client.httpx_transports import HttpxRateLimited
from tidegate_client.library import library
from tidegate_client.setup import set_up
from tidegate_client.testing import Board, FakeClock, refuse
from tidegate_client.waiting import Waiting

_QUIET_S = 5.0


@every_stack
async def test_the_time_of_a_listener_is_part_of_the_wait(stack: Stack) -> None:
    """Told to wait five seconds, and two and a half of them spent in the listener: still five in all."""
    scene = Scene(stack, refuse(_QUIET_S), uniform=0.0, on_wait=lambda event: scene.clock.advance(2.5))
    await scene.post()
    assert scene.gaps == [pytest.approx(_QUIET_S)]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_longer_wait_told_to_a_slow_listener_becomes_no_longer_still(is_async: bool) -> None:
    """The server's word is extended while the call waits; its end is what counts, not its telling."""
    clock, board = FakeClock(uniform=0.0), Board()
    began, told = clock.now, []

    def listener(event: object) -> None:
        told.append(event)
        if len(told) == 1:
            board.hold(call.origin, clock.now, began + 2 * _QUIET_S, 0.0, clock.uniform)
        else:
            clock.advance(2.5)

    setup = set_up(library(httpx, HttpxRateLimited), None, listener, board, clock)
    call = Call(httpx.Request("GET", "http://engine/"), setup)
    board.hold(call.origin, clock.now, began + _QUIET_S, 0.0, clock.uniform)
    if is_async:
        await AsyncDriver(setup, None).wait(call)
    else:
        SyncDriver(setup, None).wait(call)
    assert len(told) == 2
    assert clock.now - began == pytest.approx(2 * _QUIET_S)


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_line_moves_up_while_a_listener_runs(is_async: bool) -> None:
    """Who has become the head of the line meanwhile, when another thread could not wake it yet, sees to
    its own clock; else all behind it wait until their budgets end.
    """
    clock, board = FakeClock(uniform=0.0), Board()
    names = library(httpx, HttpxRateLimited)
    head = Call(httpx.Request("GET", "http://engine/"), set_up(names, None, None, board, clock))
    board.hold(head.origin, clock.now, clock.now + _QUIET_S, 0.0, clock.uniform)
    assert Waiting(head).poll() is not None

    setup = set_up(names, None, lambda event: head.leave(), board, clock)
    second = Call(httpx.Request("GET", "http://engine/"), setup)
    began = clock.now
    if is_async:
        await AsyncDriver(setup, None).wait(second)
    else:
        SyncDriver(setup, None).wait(second)
    assert clock.now - began == pytest.approx(_QUIET_S)
