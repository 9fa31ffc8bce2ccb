"""Background responses that nobody asks for: the engine itself shows when they are over.

The engine is the simulated one, on a fake clock: readings, ticks and tokens are the test's.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.server.bed import Raw
from tests.server.snapshots import INSTANCE
from tidegate import Reading, Settings
from tidegate.asgi.runtime import Parts, Runtime
from tidegate.asgi.types import App, Receive, Scope, Send
from tidegate.asgi.unseen import QUIET_S, READINGS, Surplus
from tidegate.core.statistics import InstanceStatistics
from tidegate.telemetry.events import EventKind
from tidegate.telemetry.prometheus import PrometheusHook
from tidegate.testing import EngineOptions, EngineSimulator, FakeClock
from tidegate.testing.clock import settle
from tidegate.testing.engine_driver import EngineDriver

OPTIONS = EngineOptions(step_s=0.1, prefill_s_per_token=0, decode_s_per_sequence=0)


@dataclass
class Server:
    """An engine that answers `background` at once, and others with a stream."""

    clock: FakeClock = field(default_factory=FakeClock)
    engine: EngineSimulator = field(default_factory=lambda: EngineSimulator(OPTIONS))
    settings: dict[str, Any] = field(default_factory=dict)
    tells: bool = True  # of its requests, not of its level alone
    asked: int = 0

    def __post_init__(self) -> None:
        self.driver = EngineDriver(self.engine, self.clock, self.clock.sleep)
        self.registry = CollectorRegistry()
        self.let_go: list[str] = []
        hooks = (PrometheusHook(self.registry), self._heard)
        parts = Parts(probe=lambda: 0.0, clock=self.clock, uniform=lambda: 0.5, hooks=hooks)
        self.runtime = Runtime(self, Settings.load(metrics=False, **self.settings), parts)

    def _heard(self, event: Any) -> None:
        if event.kind is EventKind.LET_GO:
            self.let_go.append(event.reason)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        self.asked += 1
        ticket = self.driver.submit([(16, body["max_output_tokens"], ())])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if body.get("background"):
            answer = json.dumps({"id": f"resp_{self.asked}", "status": "queued"}).encode()
            await send({"type": "http.response.body", "body": answer})
            return
        while not ticket.finished:
            await ticket.wait()
            event = b'data: {"type": "response.output_text.delta", "delta": "x"}\n\n'
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, **body: Any) -> Raw:
        """One request, let in; its answer may be under way."""
        app: App = _Guarded(self.runtime)
        raw = Raw(app, json.dumps({"model": "m", "input": "x", "max_output_tokens": 20, **body}).encode())
        await settle()
        return raw

    async def pass_s(self, seconds: int) -> None:
        """Time passes: tokens, a reading and a tick in each second."""
        for _ in range(seconds):
            await self.clock.run(0.9)
            stats = self.engine.stats()
            running, waiting = (stats.running, stats.waiting) if self.tells else (None, None)
            self.runtime.room.observe(
                [
                    Reading(
                        kv_usage=stats.kv_usage,
                        generation_tokens=stats.generation_tokens,
                        capacity_tokens=OPTIONS.usable_tokens,
                        running=running,
                        waiting=waiting,
                    )
                ]
            )
            await self.clock.run(0.1)
            self.runtime.ticker.tick()

    @property
    def leases(self) -> int:
        return self.runtime.statistics().running


class _Guarded:
    """The middleware's way to the door, with the path of a response."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "path": "/v1/responses"}
        route = self._runtime.routes.match(scope)
        assert route is not None
        await self._runtime.door.enter(route, scope, receive, send)


async def test_a_response_nobody_asks_for_ends_soon_after_the_engine_has_ended_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not before the engine has, and not 900 s later; it is counted, and told to whoever debugs."""
    server = Server()
    with caplog.at_level(logging.DEBUG, "tidegate"):
        await server.ask(background=True, max_output_tokens=250)
        await server.pass_s(24)
        assert server.engine.stats().running == 1
        assert server.leases == 1
        await server.pass_s(3 + int(QUIET_S))
    assert server.leases == 0
    assert server.let_go == ["idle"]
    assert server.registry.get_sample_value("tidegate_background_let_go_total", {"reason": "idle"}) == 1
    assert any("engine's own figures leave no room" in line for line in caplog.messages)


async def test_while_the_engine_is_idle_nobody_else_is_held_back() -> None:
    """A lease that nobody ends must not look like an engine that hangs."""
    server = Server()
    await server.ask(background=True, max_output_tokens=30)
    for _ in range(20):
        await server.pass_s(1)
        assert server.runtime.statistics().is_open
        raw = await server.ask(max_output_tokens=1)
        await server.clock.run(0.2)
        assert raw.status == 200
        await raw.task


async def test_the_surplus_ends_oldest_first_and_an_open_stream_keeps_its_lease() -> None:
    """Two of three background responses are over; the engine still has the third and the stream."""
    server = Server()
    for tokens in (10, 10, 400):
        await server.ask(background=True, max_output_tokens=tokens)
    raw = await server.ask(max_output_tokens=400)
    await server.pass_s(30)
    assert server.engine.stats().running == 2
    assert server.let_go == ["idle", "idle"]
    assert list(server.runtime.background._held) == ["resp_3"]
    assert server.leases == 2
    assert not raw.task.done()
    await server.pass_s(30)
    await raw.task
    assert server.leases == 0


async def test_an_open_request_the_engine_does_not_have_keeps_its_lease() -> None:
    """The app around the engine may be slow; whose socket is open is never let go of so."""
    server = Server()
    go = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    server.runtime.door._app = slow
    raw = await server.ask()
    await server.pass_s(60)
    assert (server.leases, server.let_go) == (1, [])
    go.set()
    await raw.task


async def test_an_engine_that_does_not_count_its_requests_proves_nothing() -> None:
    """Then only the bound ends it."""
    server = Server(tells=False)
    await server.ask(background=True, max_output_tokens=10)
    await server.pass_s(60)
    assert (server.leases, server.let_go) == (1, [])
    server.clock.advance(900)
    await server.pass_s(1)
    assert (server.leases, server.let_go) == (0, ["expired"])


def engine(age_s: float = 0.5, **figures: Any) -> InstanceStatistics:
    known = {name: getattr(INSTANCE, name) for name in INSTANCE.__slots__}
    idle = {"age_s": age_s, "running_in_engine": 0, "waiting_in_engine": 0}
    return InstanceStatistics(**{**known, **idle, **figures})


def taken(
    surplus: Surplus, *instances: InstanceStatistics, seconds: int = 12, held: Sequence[float] = (0.0,)
) -> int:
    """What is let go of in so many seconds of one reading each."""
    start = max(surplus._read_at, 0.0) + 1
    return sum(
        surplus.take(instances or (engine(),), held, lambda _: 0, start + 0.5 + second)
        for second in range(seconds)
    )


def test_a_few_seconds_or_one_reading_told_often_prove_nothing() -> None:
    """It takes several readings, and some time between the first and the last."""
    assert taken(Surplus(), seconds=int(QUIET_S)) == 0
    assert taken(Surplus(), seconds=int(QUIET_S) + 1) == 1
    surplus = Surplus()
    told = [surplus.take([engine(age_s=float(age))], [0.0], lambda _: 0, 5.0 + age) for age in range(30)]
    assert sum(told) == 0
    rare = Surplus()
    told = [rare.take([engine(age_s=float(s % 9))], [0.0], lambda _: 0, 9.0 + s) for s in range(9 * READINGS)]
    assert told.index(1) == 9 * (READINGS - 1)


@pytest.mark.parametrize(
    "other",
    [
        {"running_in_engine": 1},
        {"waiting_in_engine": 1},
        {"state": "blind"},
        {"state": "stale"},
        {"state": "asleep"},
        {"running_in_engine": None},
        {"waiting_in_engine": None},
        {"age_s": None},
    ],
)
def test_one_reading_that_leaves_room_for_it_begins_anew(other: dict[str, Any]) -> None:
    """Or that tells nothing; and of several engines each must tell."""
    surplus = Surplus()
    assert taken(surplus, seconds=int(QUIET_S)) == 0
    assert taken(surplus, engine(**other), seconds=1) == 0
    assert taken(surplus, seconds=int(QUIET_S)) == 0
    assert taken(Surplus(), engine(), engine(**other), seconds=30) == 0


def test_leases_younger_than_the_first_reading_stay() -> None:
    """The reading cannot know of them."""
    assert taken(Surplus(), held=(0.0, 0.0, 3.2)) == 2
    assert taken(Surplus(), held=(50.0,), seconds=30) == 0


def test_more_streams_than_the_engine_knows_end_no_more_than_there_are() -> None:
    """A stream may have ended in the engine a moment before we see its end."""
    surplus = Surplus()
    gone = [surplus.take([engine()], [0.0, 0.0], lambda _: 5, 1.0 + second) for second in range(12)]
    assert sum(gone) == 2


def test_no_engine_and_no_lease_are_no_surplus() -> None:
    """Nor an error."""
    assert Surplus().take([], [0.0], lambda _: 0, 1.0) == 0
    assert taken(Surplus(), held=()) == 0


async def test_a_gate_too_broken_to_tell_lets_nothing_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second's work goes on."""
    server = Server()
    await server.ask(background=True)

    def broken() -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(server.runtime.room, "statistics", broken)
    server.runtime.ticker.tick()
    assert server.let_go == []
