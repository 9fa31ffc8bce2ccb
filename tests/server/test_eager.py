"""Awaiting that begins at once: what is there is there, and waiting is no different."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.asgi.eager import Begun


async def _at_once(value: int) -> int:
    return value


async def test_what_needs_no_waiting_is_done() -> None:
    """Its value is there at once, and awaiting it does not suspend."""
    begun = Begun(_at_once(7))
    assert begun.is_done
    step = begun.__await__()
    with pytest.raises(StopIteration) as end:
        next(step)
    assert end.value.value == 7


async def test_waiting_goes_on_where_it_began() -> None:
    """Several suspensions, one value."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        await asyncio.sleep(0)
        return await future + 1

    begun = Begun(work())
    assert not begun.is_done
    asyncio.get_running_loop().call_soon(future.set_result, 1)
    assert await begun == 2


async def test_errors_pass_through() -> None:
    """Before the first suspension and after it."""

    async def raises(late: bool) -> None:
        if late:
            await asyncio.sleep(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Begun(raises(False))
    begun = Begun(raises(True))
    with pytest.raises(ValueError, match="mine"):
        await begun


async def test_a_cancellation_reaches_what_is_waited_for() -> None:
    """It can clean up, and even answer all the same."""
    cleaned = asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.set()
            await asyncio.sleep(0)
        return "late"

    async def waiter() -> str:
        return await Begun(work())

    task = asyncio.create_task(waiter())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "late"
    assert cleaned.is_set()


async def test_what_is_given_up_is_closed() -> None:
    """A coroutine thrown away leaves nothing behind it unfinished."""
    closed = False

    async def work() -> None:
        nonlocal closed
        try:
            await asyncio.Event().wait()
        finally:
            closed = True

    step = Begun(work()).__await__()
    next(step)
    step.close()
    assert closed
