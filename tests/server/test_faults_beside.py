"""Faults of ours that decide about nobody: counted and told, and the gate stays as it is."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.bed import App, bed, explode, until
from tidegate.asgi import ticker
from tidegate.asgi.faults import TRIP_COUNT
from tidegate.asgi.stream import OutputCounter
from tidegate.telemetry.events import EventKind


async def test_answers_that_cannot_be_counted_do_not_open_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose answers our counter chokes on would else switch admission off for all others."""
    app = App()
    app.chunks = [b"data: {}\n\n", b"data: [DONE]\n\n"]
    async with bed(app) as b:
        monkeypatch.setattr(OutputCounter, "feed", explode)
        assert [(await b.post()).status_code for _ in range(2 * TRIP_COUNT)] == [200] * 2 * TRIP_COUNT
        assert b.runtime.faults.count >= TRIP_COUNT
        assert b.count(EventKind.FAULT) == b.runtime.faults.count
        assert not b.runtime.faults.is_passing_through()
        assert b.runtime.statistics().running == 0


@pytest.mark.parametrize("what", ["statistics", "console"])
async def test_what_only_looks_on_neither_stops_the_ticks_nor_opens_the_gate(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gauges that stand still at their last figures would look like a quiet server."""
    monkeypatch.setattr(ticker, "TICK_S", 0.002)
    async with bed() as b:
        if what == "statistics":
            monkeypatch.setattr(b.runtime.room.gate, "statistics", explode)
        else:
            monkeypatch.setattr(b.runtime.console._history, "record", explode)
        await until(lambda: b.count(EventKind.FAULT) > TRIP_COUNT)
        monkeypatch.undo()
        ticks = b.count(EventKind.TICK)
        b.runtime.ticker.tick()
        assert b.count(EventKind.TICK) == ticks + 1
        assert not b.runtime.faults.is_passing_through()
        assert b.runtime.ticker.is_running
        assert (await b.post()).status_code == 200
        await asyncio.sleep(0)
