"""What stands around the gate: its errors pass through, and its cancellations leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.bed import Raw, Upload, bed, until
from tidegate import Reading
from tidegate.asgi.disconnect import DisconnectWatch
from tidegate.asgi.examine import OFF_LOOP_BYTES
from tidegate.asgi.outcomes import LetPass
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.asgi.waiters import Answer
from tidegate.asgi.waiting import WaitingRoom
from tidegate.core.decisions import Admit, Ask, Ending, Queued, Refuse, Settlement
from tidegate.core.options import GateOptions, KvOptions
from tidegate.telemetry.events import EventKind
from tidegate.testing import FakeClock


class TooLarge(Exception):
    """Raised by a limiter of bodies."""


def limited(app: Any, most_bytes: int) -> Any:
    """The usual way to limit bodies: count in `receive`, raise there, answer outside."""

    async def around(scope: Scope, receive: Receive, send: Send) -> None:
        seen_bytes = 0

        async def counted() -> Message:
            nonlocal seen_bytes
            message = await receive()
            seen_bytes += len(message.get("body", b""))
            if seen_bytes > most_bytes:
                raise TooLarge
            return message

        try:
            await app(scope, counted, send)
        except TooLarge:
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return around


async def test_an_error_from_the_receive_around_us_is_not_ours() -> None:
    """It reaches whoever raised it, is no fault of the gate, and never opens the gate to others."""
    async with bed() as gate:
        around = limited(gate.gate, 10)
        for _ in range(6):
            raw = Raw(around, b"x" * 100)
            await raw.task
            assert raw.status == 413
        assert gate.count(EventKind.FAULT) == 0
        assert not gate.runtime.faults.is_passing_through()
        statistics = gate.runtime.statistics()
        assert (statistics.running, statistics.queued) == (0, 0)


def watching() -> list[str]:
    """Tasks that still look out for a caller's leaving."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(DisconnectWatch.__name__)]


async def test_a_request_that_is_cancelled_in_the_queue_leaves_no_task() -> None:
    """A time-out middleware outside cancels; nothing goes on to listen for the caller's leaving."""
    async with bed(default_tenant={"max_concurrency": 1}) as gate:
        gate.app.go.clear()
        first = Raw(gate.gate)
        await until(lambda: gate.app.running == 1)
        others = [Raw(gate.gate, headers={"idempotency-key": f"k{number}"}) for number in range(5)]
        await until(lambda: gate.runtime.statistics().queued == 5)
        for raw in others:
            raw.task.cancel()
        await asyncio.gather(*(raw.task for raw in others), return_exceptions=True)
        await until(lambda: not watching())
        assert gate.runtime.statistics().queued == 0
        gate.app.go.set()
        await first.task


async def test_a_mode_switch_leaves_no_task_of_those_it_let_pass() -> None:
    """They were watched while they waited."""
    async with bed(default_tenant={"max_concurrency": 1}) as gate:
        gate.app.go.clear()
        first = Raw(gate.gate)
        await until(lambda: gate.app.running == 1)
        second = Raw(gate.gate)
        await until(lambda: gate.runtime.statistics().queued == 1)
        gate.gate.mode = "shadow"
        await until(lambda: gate.app.running == 2)
        gate.app.go.set()
        await asyncio.gather(first.task, second.task)
        await until(lambda: not watching())


@pytest.mark.parametrize("what", ["drain", "shadow"])
async def test_who_is_queued_in_the_very_moment_of_a_drain_or_a_switch_is_answered(what: str) -> None:
    """Its wait has not begun to run yet: refused or let pass like the others, and no fault."""
    async with bed(default_tenant={"max_concurrency": 1}) as gate:
        gate.app.go.clear()
        first = Raw(gate.gate)
        await until(lambda: gate.app.running == 1)
        others = [Raw(gate.gate) for _ in range(6)]
        if what == "drain":
            asyncio.get_running_loop().call_soon(gate.runtime.drain)
        else:
            asyncio.get_running_loop().call_soon(gate.runtime.set_mode, what, "by a test")
        await until(lambda: gate.app.running == 7 or all(raw.task.done() for raw in others))
        gate.app.go.set()
        await asyncio.gather(first.task, *(raw.task for raw in others))
        assert gate.count(EventKind.FAULT) == 0
        assert {raw.status for raw in others} == {503 if what == "drain" else 200}


async def _behind_a_wide_head(room: WaitingRoom) -> list[asyncio.Task[Answer]]:
    """One that runs, one that fits only beside nobody, and twelve behind it that would fit at once."""
    waiting: list[asyncio.Task[Answer]] = []
    for prompt_tokens in (5_000, 6_000, *[800] * 12):
        ask = Ask(
            ticket=room.next_ticket(),
            tenant="t",
            priority_class="standard",
            prompt_tokens=prompt_tokens,
            max_output_tokens=50,
        )
        if isinstance(room.offer(ask), Queued):
            waiting.append(asyncio.ensure_future(room.wait(ask.ticket)))
    await asyncio.sleep(0)
    assert len(waiting) == 13
    return waiting


def _room() -> WaitingRoom:
    options = GateOptions(kv=KvOptions(capacity_tokens=10_000))
    room = WaitingRoom(options, clock=FakeClock(), uniform=lambda: 0.5)
    room.observe([Reading(kv_usage=0.0, waiting=0, running=0)])
    return room


async def test_nobody_starts_by_the_leaving_of_those_before_it_while_the_server_stops() -> None:
    """A wide head that is sent away makes room; whoever stands behind it is sent away all the same."""
    room = _room()
    waiting = await _behind_a_wide_head(room)
    room.drain()
    answers = await asyncio.gather(*waiting)
    assert {type(answer) for answer in answers} == {Refuse}


async def test_whoever_was_granted_before_the_drain_keeps_its_lease() -> None:
    """Its task has not resumed yet, and it will run: the books must know of it."""
    room = _room()
    waiting = await _behind_a_wide_head(room)
    room.release(1, Settlement(ending=Ending.COMPLETED))
    granted = room.statistics().running
    assert granted > 0
    room.drain()
    answers = await asyncio.gather(*waiting)
    assert sum(isinstance(answer, Admit) for answer in answers) == granted
    assert room.statistics().running == granted


async def test_a_switch_lets_all_pass_and_ends_no_lease_that_was_just_granted() -> None:
    """In shadow mode the books go on: of those that pass none is charged, of those granted all are."""
    room = _room()
    waiting = await _behind_a_wide_head(room)
    room.release(1, Settlement(ending=Ending.COMPLETED))
    granted = room.statistics().running
    room.let_everyone_pass()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers].count(Admit) == granted == room.statistics().running
    assert {type(answer) for answer in answers} == {Admit, LetPass}


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("what", ["drain", "shadow", "off"])
async def test_what_changes_while_a_body_comes_holds_for_it_too(what: str, is_full: bool) -> None:
    """It was let in at the door; a server that stops starts nobody, a gate switched off holds none."""
    async with bed(default_tenant={"max_concurrency": 1}) as gate:
        if is_full:
            gate.app.go.clear()
        first = Raw(gate.gate)
        await until(lambda: gate.app.running == 1 if is_full else first.task.done())
        late = Upload(gate.gate)
        late.push(b'{"n": ')
        await until(lambda: gate.runtime.door._admission._bodies.held_bytes > 0)
        if what == "drain":
            gate.runtime.drain()
        else:
            gate.runtime.set_mode(what, "by a test")
        late.push(b"1}" if what == "drain" else b"100}", more=False)  # 100 would be a 400 of ours
        await until(lambda: late.task.done() or gate.app.running == 1 + is_full)
        gate.app.go.set()
        await asyncio.gather(first.task, late.task)
        assert late.status == (503 if what == "drain" else 200)
        assert gate.app.bodies[1:] == ([] if what == "drain" else [b'{"n": 100}'])


@pytest.mark.parametrize("why", ["is late", "has no room"])
@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_a_body_that_is_given_up_after_a_switch_reaches_the_app_whole(mode: str, why: str) -> None:
    """It comes too slowly, or beside others: bounds of a gate that holds nobody any more."""
    bounds = {"body": {"timeout_s": 2.0}} if why == "is late" else {"queue": {"max_bytes": 7}}
    async with bed(**bounds) as gate:
        await gate.post(b"{}")
        late = Upload(gate.gate)
        late.push(b'{"n": ')
        await until(lambda: gate.runtime.door._admission._bodies.held_bytes > 0)
        gate.runtime.set_mode(mode, "by a test")
        if why == "is late":
            await until(lambda: gate.app.running == 1)
        late.push(b"1}", more=False)
        await late.task
        assert late.status == 200
        assert gate.app.bodies[1:] == [b'{"n": 1}']


async def test_draining_refuses_a_request_whose_body_is_large_and_looked_at_elsewhere() -> None:
    """In a thread, while the loop turns."""
    async with bed() as gate:
        body = b'{"prompt": "' + b"x" * 2 * OFF_LOOP_BYTES + b'"}'
        late = Raw(gate.gate, body)
        asyncio.get_running_loop().call_soon(gate.runtime.drain)
        await late.task
        assert late.status == 503
        assert gate.app.started == 0
