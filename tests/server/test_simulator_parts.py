"""FakeClock and ScriptedProbe do what a test relies on."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.core.reading import Reading
from tidegate.testing import FakeClock, ScriptedProbe


async def test_the_clock_wakes_sleepers_in_order_and_only_when_due() -> None:
    """Each sleeper sees exactly its own instant."""
    clock = FakeClock(start_s=0.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock()))

    tasks = [
        asyncio.create_task(sleeper(name, s)) for name, s in (("late", 2.0), ("early", 1.0), ("never", 9.0))
    ]
    await clock.run(5.0)
    assert woken == [("early", 1.0), ("late", 2.0)]
    assert clock() == 5.0
    tasks[2].cancel()
    clock.advance(10.0)
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_clock_can_go_backwards() -> None:
    """A jump back wakes nobody."""
    clock = FakeClock(start_s=10.0)
    clock.advance(-3.0)
    assert clock() == 7.0
    await clock.sleep(0.0)


async def test_the_probe_reads_its_script_and_keeps_the_last_line() -> None:
    """Floats, readings, exceptions and awaitables, in order."""
    asleep = Reading(kv_usage=0.0, asleep=True)

    async def slow() -> Reading:
        return asleep

    probe = ScriptedProbe(0.25, OSError("gone"), [Reading(kv_usage=0.5)], slow)
    assert await probe.read() == Reading(kv_usage=0.25)
    with pytest.raises(OSError, match="gone"):
        await probe.read()
    assert await probe.read() == [Reading(kv_usage=0.5)]
    assert await probe.read() is asleep
    assert await probe.read() is asleep
    assert probe.reads == 5
    probe.then(0.75)
    assert await probe.read() == Reading(kv_usage=0.75)


def test_a_probe_without_a_script_is_refused() -> None:
    """The error says what to give."""
    with pytest.raises(ValueError, match=r"0\.5"):
        ScriptedProbe()
