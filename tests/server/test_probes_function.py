"""Whatever callers hand over as a probe."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes import Probe, ProbeError, ProbeGroup, as_probe
from tidegate.probes.protocol import as_readings


class Asynchronous:
    """A probe by shape alone."""

    async def read(self) -> Reading:
        """Answer with a reading."""
        return Reading(kv_usage=0.5, instance="a")


class Synchronous:
    """Nearly a probe: `read` is no coroutine."""

    def read(self) -> float:
        """Answer with a level."""
        return 0.25


class Awaiting:
    """An object whose call is a coroutine function."""

    async def __call__(self) -> float:
        """Answer with a level."""
        return 0.75


async def level() -> float:
    """Answer with a level."""
    return 0.5


READ: list[tuple[Any, list[float]]] = [
    (Asynchronous(), [0.5]),
    (Synchronous(), [0.25]),
    (Awaiting(), [0.75]),
    (level, [0.5]),
    (lambda: 0.5, [0.5]),
    (lambda: 1, [1.0]),
    (lambda: 0, [0.0]),
    (functools.partial(level), [0.5]),
    (lambda: Reading(kv_usage=0.1), [0.1]),
    (lambda: [Reading(kv_usage=0.1), Reading(kv_usage=0.2, instance="b")], [0.1, 0.2]),
    (lambda: (Reading(kv_usage=0.3),), [0.3]),
]


@pytest.mark.parametrize(("source", "levels"), READ)
async def test_probes_and_callables_are_read(source: Any, levels: list[float]) -> None:
    """Objects, functions, coroutines; readings, lists and bare levels."""
    assert [reading.kv_usage for reading in as_readings(await as_probe(source).read())] == levels


def test_a_probe_stays_itself() -> None:
    """What is a probe already is not wrapped."""
    source = Asynchronous()
    assert as_probe(source) is source
    assert isinstance(source, Probe)


@pytest.mark.parametrize("source", [None, 3, "http://engine/metrics", Asynchronous, object()])
def test_what_is_no_source_is_refused(source: Any) -> None:
    """A class, a URL, nothing: the error says what is accepted."""
    with pytest.raises(TypeError, match=r"async def read.*level"):
        as_probe(source)


@pytest.mark.parametrize("answer", [None, "0.5", b"x", True, {"kv": 0.5}, [], [0.5], object()])
async def test_other_answers_are_failures(answer: Any) -> None:
    """No reading, no level: a failure, never 0 %."""
    with pytest.raises(ProbeError, match=r"expected|no reading"):
        await as_probe(lambda: answer).read()


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), -0.1, 1.1])
async def test_levels_out_of_range_are_refused(answer: float) -> None:
    """A level that cannot be true is not clipped."""
    with pytest.raises(InvalidReading, match="kv_usage"):
        await as_probe(lambda: answer).read()


async def test_a_percentage_names_the_way_out() -> None:
    """82 is taken for what it is."""
    with pytest.raises(InvalidReading, match="divide by 100"):
        await as_probe(lambda: 82).read()


async def test_a_given_up_reading_may_still_fail() -> None:
    """A call that raises after its reader has gone disturbs nobody."""
    release = threading.Event()
    ended = threading.Event()

    def broken() -> float:
        release.wait(60)
        ended.set()
        raise ZeroDivisionError("boom")

    task = asyncio.ensure_future(as_probe(broken).read())
    await asyncio.sleep(0.01)
    task.cancel()
    release.set()
    while not ended.is_set():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert task.cancelled()


async def test_what_a_callable_raises_comes_through() -> None:
    """The caller's own exception is what a log will show."""

    def broken() -> float:
        raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError, match="boom"):
        await as_probe(broken).read()


async def test_an_exit_in_a_callable_stops_nothing() -> None:
    """SystemExit in a probe becomes a failure of the probe."""

    def leaving() -> float:
        raise SystemExit(3)

    with pytest.raises(ProbeError, match="SystemExit"):
        await as_probe(leaving).read()


async def test_a_blocking_callable_does_not_hold_the_loop() -> None:
    """While it blocks, the loop turns; a second reading is refused, and it leaves no thread to wait for."""
    release = threading.Event()
    source = as_probe(lambda: release.wait(60) and 0.5)
    first = asyncio.ensure_future(source.read())
    await asyncio.sleep(0.05)
    assert not first.done()

    with pytest.raises(ProbeError, match="has not come back"):
        await source.read()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("tidegate"))
    release.set()

    assert as_readings(await first) == [Reading(kv_usage=0.5)]
    assert as_readings(await source.read()) == [Reading(kv_usage=0.5)]


async def test_a_machine_without_threads_left_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread can be started: said, and tried again at the next reading."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source = as_probe(lambda: 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ProbeError, match="no thread could be started"):
            await source.read()

    assert as_readings(await source.read()) == [Reading(kv_usage=0.5)]


def test_a_callable_may_end_after_its_loop() -> None:
    """A blocking reading that outlives the event loop is dropped without a word."""
    release = threading.Event()
    done = threading.Event()

    def slow() -> float:
        release.wait(60)
        done.set()
        return 0.5

    async def give_up() -> None:
        task = asyncio.ensure_future(as_probe(slow).read())
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(give_up())
    release.set()
    assert done.wait(60)


def failing(message: str) -> Callable[[], float]:
    """Return a callable that fails."""

    def fail() -> float:
        raise ProbeError(message)

    return fail


async def test_a_group_answers_with_what_it_got() -> None:
    """One part's failure does not hide the others; all parts' failure is one."""
    good = as_probe(lambda: 0.5)

    assert [r.kv_usage for r in await ProbeGroup([as_probe(failing("one")), good]).read()] == [0.5]
    with pytest.raises(ProbeError, match="one; two"):
        await ProbeGroup([as_probe(failing("one")), as_probe(failing("two"))]).read()
    odd = as_probe(lambda: 1 / 0)
    assert [r.kv_usage for r in await ProbeGroup([odd, good]).read()] == [0.5]
    with pytest.raises(ValueError, match="parts is empty"):
        ProbeGroup([])


async def test_a_group_closes_its_parts() -> None:
    """Parts that can be closed are closed, others left."""
    closed: list[str] = []

    class Closing(Asynchronous):
        async def aclose(self) -> None:
            closed.append("here")

    await ProbeGroup([Closing(), Asynchronous()]).aclose()
    assert closed == ["here"]
