"""A server that stops: who waits is sent away, who runs is let end."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.server.bed import Level, Raw, bed, until


async def test_draining_sends_the_waiting_away_and_lets_the_running_end() -> None:
    """503 with a time to come back, at once."""
    async with bed(kv={"max_sequences": 1}) as b:
        b.app.go.clear()
        running = b.send()
        await until(lambda: b.app.running == 1)
        waiting = b.send()
        await until(lambda: b.runtime.statistics().queued == 1)
        b.runtime.drain()
        refused = await waiting
        assert refused.status_code == 503
        assert refused.json()["error"]["reason"] == "draining"
        assert int(refused.headers["retry-after"]) >= 1
        assert (await b.post()).status_code == 503
        b.app.go.set()
        assert (await running).status_code == 200


async def test_sigterm_drains_although_the_server_waits_for_its_requests_first() -> None:
    """Servers tell the app of the shutdown only after the last request; the signal is heard before."""
    heard: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        async with bed(level=Level(kv_usage=0.97)) as b:
            waiting = b.send()
            await until(lambda: b.runtime.statistics().queued == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await waiting).status_code == 503
            assert heard == [signal.SIGTERM], "the server's own handler runs too"
    finally:
        assert signal.getsignal(signal.SIGTERM) is not previous
        signal.signal(signal.SIGTERM, previous)


async def test_of_two_gates_in_one_process_the_first_to_stop_leaves_the_signals_to_the_other() -> None:
    """Its own handler stands beneath the other's by then, and must still pass on to the server's."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        async with bed() as first, bed() as second:
            await first.runtime.stop()
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: second.runtime.door.is_draining)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_an_interrupt_without_a_server_drains_nothing() -> None:
    """In a notebook Ctrl-C ends a cell, and the next one goes on with the same gate."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        async with bed() as b:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            assert (await b.post()).status_code == 200
    finally:
        signal.signal(signal.SIGINT, before)


async def test_many_leave_at_once_and_nothing_is_left_behind() -> None:
    """A hundred waiting callers hang up in one instant."""
    async with bed(level=Level(kv_usage=0.97)) as b:
        raws = [Raw(b.gate) for _ in range(100)]
        await until(lambda: b.runtime.statistics().queued == 100)
        for raw in raws:
            raw.leave()
        await asyncio.gather(*(raw.task for raw in raws))
        statistics = b.runtime.statistics()
        assert (statistics.queued, statistics.running, statistics.queued_bytes) == (0, 0, 0)
        assert b.runtime.room._waiters == {}
