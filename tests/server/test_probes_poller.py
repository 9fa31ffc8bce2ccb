"""Polling off the request path."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.server.bed import until
from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes import ProbeError, ProbeGroup
from tidegate.probes.poller import JITTER, Pace, Poller

PACE = Pace(
    interval_s=1.0, min_interval_s=0.25, idle_interval_s=2.0, max_backoff_s=10.0, timeout_s=30.0, near=0.1
)


class Clock:
    """Time that passes when told to, and sleepers that wake then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, delay: float) -> None:
        """Wait until `advance` has come this far."""
        self.slept.append(delay)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + delay, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass, sleeper by sleeper."""
        end = self.now + seconds
        await settle()
        while True:
            due = sorted((at, id(future)) for at, future in self._sleepers if at <= end and not future.done())
            if not due:
                break
            self.now = due[0][0]
            for at, future in self._sleepers:
                if at <= self.now and not future.done():
                    future.set_result(None)
            await settle()
        self.now = end
        self._sleepers = [(at, future) for at, future in self._sleepers if not future.done()]
        await settle()


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Source:
    """A probe that answers as told; counts readings and how many were under way at once."""

    def __init__(self, *answers: Reading | Exception, instance: str = "a") -> None:
        self.instance = instance
        self.answers = list(answers)
        self.at: list[float] = []
        self.clock: Clock | None = None
        self.under_way = self.most_under_way = 0
        self.closed = False

    async def read(self) -> Sequence[Reading]:
        """Give the next answer, the last one for ever."""
        self.at.append(self.clock() if self.clock else 0.0)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await asyncio.sleep(0)
            if isinstance(answer, Exception):
                raise answer
            return [answer]
        finally:
            self.under_way -= 1

    async def aclose(self) -> None:
        """Remember it."""
        self.closed = True


class Rig:
    """A poller on a fake clock, and what it reported."""

    def __init__(self, probe: Source | ProbeGroup, **options: object) -> None:
        self.clock = Clock()
        self.readings: list[Reading] = []
        self.failures: list[tuple[str, str]] = []
        for source in probe.parts if isinstance(probe, ProbeGroup) else (probe,):
            if isinstance(source, Source):
                source.clock = self.clock
        arguments: dict[str, object] = {
            "on_readings": self.readings.extend,
            "on_failure": lambda instance, error: self.failures.append((instance, str(error))),
            "pace": PACE,
            "clock": self.clock,
            "sleep": self.clock.sleep,
            "uniform": lambda low, high: (low + high) / 2,
            **options,
        }
        self.poller = Poller(probe, **arguments)  # type: ignore[arg-type]


def at(level: float, **figures: int) -> Reading:
    """Return a reading of a busy engine."""
    return Reading(kv_usage=level, **{"running": 1, "waiting": 0, **figures}, instance="a")  # type: ignore[arg-type]


async def test_readings_come_at_the_interval() -> None:
    """One at the start, then one a second."""
    source = Source(at(0.5))
    rig = Rig(source)
    rig.poller.start()
    await rig.clock.advance(3.5)
    await rig.poller.stop()

    assert source.at == [0.0, 1.0, 2.0, 3.0]
    assert rig.readings == [at(0.5)] * 4
    assert source.closed


PACES: list[tuple[list[Reading], int, float]] = [
    ([at(0.5)], 0, 1.0),
    ([at(0.71)], 0, 1.0),
    ([at(0.72)], 0, 0.25),
    ([at(0.99)], 0, 0.25),
    ([at(0.1, waiting=3)], 0, 0.25),
    ([at(0.1), at(0.9)], 0, 0.25),
    ([at(0.0, running=0)], 0, 2.0),
    ([at(0.0, running=0), at(0.3)], 0, 1.0),
    ([Reading(kv_usage=None, running=0, waiting=0)], 0, 2.0),
    ([Reading(kv_usage=None)], 0, 1.0),
    ([], 0, 1.0),
    ([], 1, 1.0),
    ([], 2, 2.0),
    ([], 4, 8.0),
    ([], 5, 10.0),
    ([], 10_000, 10.0),
    ([at(0.99)], 3, 4.0),
]


@pytest.mark.parametrize(("readings", "failures", "delay_s"), PACES)
def test_the_delay_follows_the_need(readings: list[Reading], failures: int, delay_s: float) -> None:
    """Short near the watermark of 0.82, long when idle, doubled by failures up to a bound."""
    assert PACE.delay_s(readings, failures, 0.82) == pytest.approx(delay_s)


async def test_each_delay_is_jittered() -> None:
    """Delays spread over +-10 %, so that many gates do not ask in step."""
    rig = Rig(Source(at(0.5)), uniform=random.Random(1).uniform)
    rig.poller.start()
    await rig.clock.advance(100)
    await rig.poller.stop()

    assert all(1 - JITTER <= delay <= 1 + JITTER for delay in rig.clock.slept)
    assert max(rig.clock.slept) - min(rig.clock.slept) > JITTER


async def test_failures_back_off_and_recovery_is_at_once_normal() -> None:
    """1, 2, 4, 8 seconds after failures; the first good reading returns to the interval."""
    source = Source(*(ProbeError("no"),) * 4, at(0.5))
    rig = Rig(source)
    rig.poller.start()
    await rig.clock.advance(17.5)
    await rig.poller.stop()

    assert source.at == [0.0, 1.0, 3.0, 7.0, 15.0, 16.0, 17.0]
    assert rig.failures == [("a", "no")] * 4


@pytest.mark.parametrize(
    "error", [ProbeError("x"), InvalidReading("x"), ZeroDivisionError("x"), TimeoutError("x"), KeyError("x")]
)
async def test_whatever_a_source_raises_is_reported_and_polling_goes_on(error: Exception) -> None:
    """No exception ends the polling."""
    rig = Rig(Source(error, at(0.5)))
    rig.poller.start()
    await rig.clock.advance(1.0)
    await rig.poller.stop()

    assert len(rig.failures) == 1
    assert rig.readings == [at(0.5)]


async def test_a_source_that_cancels_itself_does_not_end_the_polling() -> None:
    """A CancelledError out of a source is its failure, not the poller's end."""

    class Cancelling(Source):
        async def read(self) -> Sequence[Reading]:
            self.at.append(0.0)
            raise asyncio.CancelledError

    source = Cancelling()
    rig = Rig(source)
    rig.poller.start()
    await rig.clock.advance(1.0)
    await rig.poller.stop()

    assert len(source.at) == 2
    assert "cancelled" in rig.failures[0][1]


async def test_an_empty_answer_is_a_failure() -> None:
    """No reading is not no load."""

    class Empty(Source):
        async def read(self) -> Sequence[Reading]:
            return []

    rig = Rig(Empty())
    rig.poller.start()
    await rig.clock.advance(0)
    await rig.poller.stop()

    assert rig.failures
    assert not rig.readings


async def test_failures_are_reported_for_the_instances_last_seen() -> None:
    """A page with two engines that stops answering silences both."""

    class Ranks(Source):
        async def read(self) -> Sequence[Reading]:
            if self.at:
                raise ProbeError("gone")
            self.at.append(0.0)
            return [Reading(kv_usage=0.5, instance="a#0"), Reading(kv_usage=0.5, instance="a#1")]

    rig = Rig(Ranks())
    rig.poller.start()
    await rig.clock.advance(1.0)
    await rig.poller.stop()

    assert [instance for instance, _ in rig.failures] == ["a#0", "a#1"]


class Hanging(Source):
    """Hangs; with `stubborn` it even swallows its cancellation for a while."""

    def __init__(self, *, stubborn: bool = False, instance: str = "h") -> None:
        super().__init__(at(0.5), instance=instance)
        self.stubborn = stubborn
        self.calls = 0
        self.release = asyncio.Event()

    async def read(self) -> Sequence[Reading]:
        self.calls += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            if not self.stubborn:
                raise
            await self.release.wait()
        return [at(0.5)]


async def test_a_hanging_source_is_timed_out_and_never_asked_twice_at_once() -> None:
    """Even one that swallows its cancellation is asked again only when it has come back."""
    source = Hanging(stubborn=True)
    pace = Pace(interval_s=0.02, min_interval_s=0.01, max_backoff_s=0.05, timeout_s=0.03)
    rig = Rig(source, sleep=asyncio.sleep, pace=pace)
    rig.poller.start()
    await until(lambda: len(rig.failures) >= 3)

    assert source.calls == 1
    assert "within" in rig.failures[0][1]
    assert "not come back" in rig.failures[1][1]
    source.release.set()
    await until(lambda: bool(rig.readings))
    await rig.poller.stop()


async def test_a_reading_that_is_too_late_is_given_up_and_asked_for_anew() -> None:
    """A source that hangs once does not stay lost."""
    source = Hanging()
    pace = Pace(interval_s=0.02, min_interval_s=0.01, max_backoff_s=0.05, timeout_s=0.03)
    rig = Rig(source, sleep=asyncio.sleep, pace=pace)
    rig.poller.start()
    await until(lambda: source.calls >= 2)
    source.release.set()
    await until(lambda: bool(rig.readings))
    await rig.poller.stop()


async def test_one_hanging_instance_delays_no_other() -> None:
    """Each part of a group has a pace of its own."""
    good = Source(at(0.5))
    rig = Rig(ProbeGroup([Hanging(), good]))
    rig.poller.start()
    await rig.clock.advance(3.0)
    await rig.poller.stop()

    assert good.at == [0.0, 1.0, 2.0, 3.0]


async def test_the_loop_is_free_while_a_source_hangs() -> None:
    """What shares the loop with the poller does not wait for the probe."""
    rig = Rig(Hanging(), pace=Pace(timeout_s=30.0))
    rig.poller.start()
    loop = asyncio.get_running_loop()
    worst = 0.0
    for _ in range(200):
        before = loop.time()
        await asyncio.sleep(0)
        worst = max(worst, loop.time() - before)
    started = loop.time()
    rig.poller.nudge()
    assert loop.time() - started < 0.05
    assert worst < 0.25
    await rig.poller.stop()


async def test_a_nudge_brings_a_reading_now() -> None:
    """A reading asked for between two polls comes at once."""
    source = Source(at(0.0, running=0))
    rig = Rig(source)
    rig.poller.start()
    await rig.clock.advance(0.5)
    rig.poller.nudge()
    await rig.clock.advance(0.1)
    await rig.poller.stop()

    assert source.at == [0.0, 0.5]


async def test_nudges_keep_their_distance() -> None:
    """A thousand nudges make one reading per quarter of a second, one per second after failures."""
    for answer, expected in ((at(0.5), [0.0, 0.25, 0.5, 0.75]), (ProbeError("no"), [0.0, 1.0])):
        source = Source(answer)
        rig = Rig(source)
        rig.poller.start()
        for _ in range(100 if isinstance(answer, Exception) else 90):
            for _ in range(10):
                rig.poller.nudge()
            await rig.clock.advance(0.01)
        await rig.clock.advance(0)
        await rig.poller.stop()

        assert source.at == pytest.approx(expected, abs=0.02)
        assert source.most_under_way == 1


async def test_a_nudge_during_a_reading_is_answered_by_the_next() -> None:
    """The reading under way may be too old already for who asks."""

    class Slow(Source):
        async def read(self) -> Sequence[Reading]:
            self.at.append(0.0)
            rig.poller.nudge()
            return [at(0.5)]

    source = Slow()
    rig = Rig(source)
    rig.poller.start()
    await rig.clock.advance(0.3)
    await rig.poller.stop()

    assert len(source.at) == 2


async def test_a_listener_that_fails_does_not_end_the_polling(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""

    def broken(_: object) -> None:
        raise ZeroDivisionError("boom")

    source = Source(at(0.5))
    rig = Rig(source, on_readings=broken)
    rig.poller.start()
    await rig.clock.advance(2.0)
    await rig.poller.stop()

    assert len(source.at) == 3
    assert "boom" in caplog.text


async def test_starting_and_stopping_twice_does_nothing() -> None:
    """One task however often it is started."""
    source = Source(at(0.5))
    rig = Rig(source)
    rig.poller.start()
    rig.poller.start()
    await rig.clock.advance(1.0)
    await rig.poller.stop()
    await rig.poller.stop()

    assert source.at == [0.0, 1.0]
    assert not rig.poller.running


async def test_stopping_ends_in_time_whatever_the_source_does() -> None:
    """A source that swallows its cancellation does not keep a server from stopping."""
    source = Hanging(stubborn=True)
    rig = Rig(source, pace=Pace(timeout_s=0.05))
    rig.poller.start()
    await settle()
    await asyncio.wait_for(rig.poller.stop(), 60)
    source.release.set()
    await settle()


def test_a_poller_may_be_started_again_on_another_loop() -> None:
    """Built once, run under two loops; between them nothing runs and nothing breaks."""
    source = Source(at(0.5))
    rig = Rig(source, sleep=asyncio.sleep)

    async def once(*, stop: bool) -> None:
        rig.poller.start()
        await asyncio.sleep(0.02)
        if stop:
            await rig.poller.stop()

    asyncio.run(once(stop=False))  # a loop that ends under the poller's feet
    assert not rig.poller.running
    rig.poller.nudge()
    asyncio.run(once(stop=True))

    assert len(rig.readings) == 2


async def test_closing_that_fails_is_no_failure_of_stopping() -> None:
    """Best effort."""

    class Broken(Source):
        async def aclose(self) -> None:
            raise OSError("no")

    rig = Rig(Broken(at(0.5)))
    rig.poller.start()
    await rig.poller.stop()
