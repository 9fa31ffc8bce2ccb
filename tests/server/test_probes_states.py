"""What the readings are worth: every state is a gauge and, when it changes, one line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.server.bed import App, bed
from tidegate import Reading, Settings
from tidegate.asgi.runtime import Parts, Runtime
from tidegate.core.decisions import Ask
from tidegate.core.signal import State
from tidegate.telemetry.prometheus import SIGNAL_STATES, PrometheusHook
from tidegate.testing import FakeClock

BUSY = {"running": 1, "waiting": 0, "generation_tokens": 5.0}


class Watched:
    """A gate whose readings, clock and seconds are the test's."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        parts = Parts(probe=lambda: 0.5, clock=self.clock, hooks=[PrometheusHook(self.registry)])
        self.runtime = Runtime(App(), settings or Settings(metrics=False), parts)

    def read(self, kv_usage: float | None = 0.5, **figures: Any) -> None:
        """A reading comes in."""
        self.runtime.room.observe([Reading(kv_usage=kv_usage, **figures)])

    def start(self) -> None:
        """A request of ours runs."""
        ask = Ask(
            ticket=self.runtime.room.next_ticket(),
            tenant="t",
            priority_class="standard",
            prompt_tokens=10,
            max_output_tokens=10,
        )
        self.runtime.room.gate.offer(ask, self.clock(), lambda: 0.5)

    def pass_s(self, seconds: int) -> None:
        """Time passes, and the ticker ticks with it."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.runtime.ticker.tick()

    def state(self) -> str | None:
        """The one state whose gauge is 1."""
        shown = [
            state
            for state in SIGNAL_STATES
            if self.registry.get_sample_value("tidegate_signal_state", {"engine": "default", "state": state})
        ]
        assert len(shown) <= 1, shown
        return shown[0] if shown else None


def stale(gate: Watched) -> None:
    """Nothing new for some seconds."""
    gate.read()
    gate.pass_s(4)


def blind(gate: Watched) -> None:
    """Nothing new for long."""
    gate.read()
    gate.pass_s(60)


def asleep(gate: Watched) -> None:
    """The engine says so."""
    gate.read(0.0, asleep=True)
    gate.pass_s(1)


def frozen(gate: Watched) -> None:
    """Full although nothing runs, reading after reading."""
    for _ in range(4):
        gate.read(0.99, running=0)
        gate.pass_s(1)


def stalled(gate: Watched) -> None:
    """Work runs, and the counters stand still after they have moved."""
    gate.read(**BUSY | {"generation_tokens": 3.0})
    gate.start()
    for _ in range(7):
        gate.read(**BUSY)
        gate.pass_s(1)


@pytest.mark.parametrize("reach", [stale, blind, asleep, frozen, stalled])
async def test_every_state_is_a_gauge_and_a_line_when_it_changes(
    reach: Callable[[Watched], None], caplog: pytest.LogCaptureFixture
) -> None:
    """There and back: one line each way, however many seconds it lasts."""
    name = reach.__name__
    gate = Watched()
    gate.read()
    gate.pass_s(1)
    assert gate.state() == "fresh"
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tidegate"):  # what servers print by themselves
        reach(gate)
        assert gate.state() == name
        gate.pass_s(1)
        gate.read(0.3, generation_tokens=77.0)
        gate.pass_s(1)
    told = [line for line in caplog.messages if "Signal of default" in line]
    assert told[-2].startswith(f"Tidegate: Signal of default is now {name}. ")
    assert told[-2].endswith("."), "it says what that means"
    assert told[-1] == "Tidegate: Signal of default is now fresh."
    assert len(told) == 2 + (name == "blind"), "stale comes before blind"
    assert gate.state() == "fresh"


async def test_an_engine_that_is_down_from_the_start_is_one_engine(caplog: pytest.LogCaptureFixture) -> None:
    """Not a nameless one besides, whose alarm nobody would ever hear the end of."""
    gate = Watched()
    with caplog.at_level(logging.WARNING, "tidegate"):
        gate.runtime.room.probe_failed("a:1")
        gate.pass_s(5)
        gate.runtime.room.observe([Reading(kv_usage=0.1, instance="a:1")])
        gate.pass_s(1)
    told = [line.partition(". ")[0] for line in caplog.messages if "Signal of" in line]
    assert told == ["Tidegate: Signal of a:1 is now blind", "Tidegate: Signal of a:1 is now fresh."]
    assert gate.state() is None, "no gauge of the nameless one"


async def test_a_fresh_gate_after_faults_is_not_called_blind(caplog: pytest.LogCaptureFixture) -> None:
    """Its first reading is on its way."""
    gate = Watched()
    gate.runtime.room.observe([Reading(kv_usage=0.1, instance="a:1")])
    gate.pass_s(1)
    with caplog.at_level(logging.WARNING, "tidegate"):
        gate.runtime.room.reset()
        gate.pass_s(2)
        gate.runtime.room.observe([Reading(kv_usage=0.1, instance="a:1")])
        gate.pass_s(1)
    assert not [line for line in caplog.messages if "Signal of" in line]


async def test_nobody_who_says_a_level_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Where no source has a name either, the nameless one is blind, after a moment."""
    gate = Watched()
    with caplog.at_level(logging.WARNING, "tidegate"):
        gate.pass_s(5)
    told = [line.partition(". ")[0] for line in caplog.messages if "Signal of" in line]
    assert told == ["Tidegate: Signal of default is now blind"]
    assert gate.state() == "blind"


def test_no_state_is_without_a_gauge() -> None:
    """A state the core learns to tell is shown."""
    assert set(SIGNAL_STATES) == {state.value for state in State}


async def test_without_any_reading_the_gate_is_blind_not_empty() -> None:
    """From the first second on; and the level's gauge is not there, rather than 0."""
    gate = Watched()
    gate.pass_s(1)
    assert gate.state() == "blind"
    assert gate.registry.get_sample_value("tidegate_kv_level_ratio", {"engine": "default"}) is None


async def test_the_choice_and_its_reason_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line when the gate is built."""
    settings = Settings.load(metrics=False, probe={"urls": "http://a:1/metrics"})
    with caplog.at_level(logging.WARNING, "tidegate"):
        Runtime(App(), settings, Parts())
    assert [line for line in caplog.messages if "level comes" in line] == [
        "Tidegate: the level comes from Prometheus text at http://a:1/metrics; "
        "engine: recognised by its metrics"
    ]


async def test_the_probe_hurries_near_the_watermark_in_force() -> None:
    """The poller is told the real one, not a constant."""
    async with bed(kv={"high_watermark": 0.5}) as b:
        b.runtime.ticker.tick()
        assert b.runtime._poller._watermark() == 0.5
