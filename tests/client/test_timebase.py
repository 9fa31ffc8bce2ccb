"""The clocks: the real one with its signals, and the fake one for tests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tidegate_client.core.events import WaitEvent
from tidegate_client.testing import FakeClock
from tidegate_client.timebase import REAL_TIME, _within
from tidegate_client.waits import WaitFeed, tell

LONG_S = 60.0
EVENT = WaitEvent("busy", 1.0, 1e12, 1e12, 2, 3, "http://engine", "tenant", "none", 1)


def test_a_thread_is_woken_by_its_signal() -> None:
    """Set before or during the wait: it ends at once, and the next one begins afresh."""
    signal = REAL_TIME.signal()
    signal.set()
    REAL_TIME.wait(signal, LONG_S)
    threading.Timer(0.01, signal.set).start()
    REAL_TIME.wait(signal, LONG_S)
    REAL_TIME.wait(signal, 0.0)


async def test_a_task_is_woken_from_any_thread() -> None:
    """From its own loop, and from a thread that knows no loop."""
    signal = REAL_TIME.loop_signal()
    signal.set()
    await REAL_TIME.wait_async(signal, LONG_S)
    waker = threading.Thread(target=signal.set)
    waker.start()
    await REAL_TIME.wait_async(signal, LONG_S)
    waker.join()
    await REAL_TIME.wait_async(signal, 0.001)


def test_a_signal_outlives_its_loop() -> None:
    """Whoever wakes a caller whose loop has ended disturbs nobody."""

    async def make() -> Any:
        return REAL_TIME.loop_signal()

    signal = asyncio.run(make())
    waker = threading.Thread(target=signal.set)
    waker.start()
    waker.join()


def test_a_signal_outlives_its_loop_with_a_wait_under_way() -> None:
    """Nor does a loop that was closed in the middle of a wait."""
    loop, signals = asyncio.new_event_loop(), list[Any]()

    async def begin() -> asyncio.Future[None]:
        signals.append(REAL_TIME.loop_signal())
        wait = asyncio.ensure_future(REAL_TIME.wait_async(signals[0], LONG_S))
        await asyncio.sleep(0)
        return wait

    wait = loop.run_until_complete(begin())
    loop.close()
    signals[0].set()

    assert not wait.done()
    wait._log_destroy_pending = False  # type: ignore[attr-defined]  # pending for good, as meant


async def test_a_cancellation_that_comes_with_the_wake_is_kept() -> None:
    """A caller that leaves in the very turn of the loop in which its wait ends has left."""
    signal = REAL_TIME.loop_signal()
    wait = asyncio.create_task(REAL_TIME.wait_async(signal, LONG_S))
    await asyncio.sleep(0)
    signal.set()
    wait.cancel()

    with pytest.raises(asyncio.CancelledError):
        await wait


@pytest.mark.parametrize("bounded", [REAL_TIME.within, _within])
async def test_a_cancellation_that_comes_with_the_answer_is_kept(bounded: Any) -> None:
    """Work with a deadline is no different; nor is the deadline, which ends it."""
    answer = asyncio.get_running_loop().create_future()

    async def work() -> int:
        result: int = await answer
        return result

    call = asyncio.create_task(bounded(LONG_S, work()))
    for _ in range(3):
        await asyncio.sleep(0)
    answer.set_result(1)
    for _ in range(2):
        call.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(asyncio.TimeoutError):
        await bounded(0.001, asyncio.sleep(LONG_S))
    assert await bounded(LONG_S, asyncio.sleep(0, 2)) == 2


async def test_a_signal_of_another_clock_is_refused() -> None:
    """Each clock waits for signals of its own, and says so."""
    fake, real = FakeClock().signal(), REAL_TIME.signal()
    with pytest.raises(TypeError, match="made by signal"):
        REAL_TIME.wait(fake, 0.0)
    with pytest.raises(TypeError, match="made by loop_signal"):
        await REAL_TIME.wait_async(real, 0.0)
    with pytest.raises(TypeError, match="signals of its own"):
        FakeClock().wait(real, 0.0)


async def test_the_fake_clock_does_not_jump_for_whoever_was_woken() -> None:
    """A signal set before the wait ends it at the same instant, on a thread and on a loop."""
    clock = FakeClock()
    signal = clock.signal()
    signal.set()
    clock.wait(signal, LONG_S)
    signal = clock.loop_signal()
    signal.set()
    await clock.wait_async(signal, LONG_S)

    assert (clock.now, clock.waits) == (1000.0, [])


def test_a_feed_outlives_the_loop_that_followed_it() -> None:
    """A loop that was closed without a farewell disturbs nobody: events are kept for whoever looks."""
    feed, loop = WaitFeed(), asyncio.new_event_loop()
    events = aiter(feed)

    async def follow() -> None:
        upcoming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        tell(feed, EVENT)
        assert await upcoming == EVENT

    loop.run_until_complete(follow())
    loop.close()
    feed(EVENT)
    tell(None, EVENT)

    assert feed.waiting(0.0) == [EVENT]
    asyncio.run(events.aclose())  # type: ignore[attr-defined]  # the feed's iterator is a generator
