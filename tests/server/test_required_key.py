"""A required key stays required: the lock does not open because the gate is broken or switched off."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.bed import Bed, bed, explode
from tidegate.asgi.faults import TRIP_COUNT
from tidegate.asgi.keys import CachedKeys
from tidegate.asgi.tenant import TenantKeys
from tidegate.settings import Mode
from tidegate.telemetry.events import EventKind

LOCKED: dict[str, Any] = {"identity": {"require_key": True}, "tenants": [{"name": "ours", "keys": ["sk-1"]}]}
KEY = {"authorization": "Bearer sk-1"}


async def statuses(gate: Bed) -> tuple[int, int]:
    """(with the key, without)."""
    return (await gate.post(headers=KEY)).status_code, (await gate.post()).status_code


@pytest.mark.parametrize("operation", ["offer", "precheck"])
async def test_past_a_broken_gate(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While single faults open it, and when they have opened it for everyone."""
    async with bed(**LOCKED) as gate:
        monkeypatch.setattr(gate.runtime.room.gate, operation, explode)
        for _ in range(TRIP_COUNT + 1):
            assert await statuses(gate) == (200, 401)
        assert gate.runtime.faults.is_passing_through()
        assert gate.app.started == TRIP_COUNT + 1


async def test_who_cannot_be_told_apart_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the check itself closes: 503, for the right key and the wrong one."""
    async with bed(**LOCKED) as gate:
        monkeypatch.setattr(gate.runtime.door._around.callers, "identify", explode)
        for _ in range(TRIP_COUNT + 1):
            assert await statuses(gate) == (503, 503)
        assert gate.app.started == 0


@pytest.mark.parametrize("mode", ["enforce", "off", "shadow"])
async def test_a_provider_that_cannot_be_asked_refuses_for_now(mode: Mode) -> None:
    """Nobody has said that the key is wrong: 503 and when to come back, never 401; and it is no fault."""

    async def lookup(digest: str) -> TenantKeys | None:
        raise ConnectionError("the database is down")

    async with bed(**LOCKED) as gate:
        keys = CachedKeys(lookup, clock=gate.runtime._parts.clock)
        gate.runtime.door._around.callers._resolver._keys = keys
        gate.gate.mode = mode
        answer = await gate.post(headers={"x-api-key": "never seen"})
        assert answer.status_code == (200 if mode == "shadow" else 503)
        if mode != "shadow":
            assert answer.json()["error"]["reason"] == "keys_unavailable"
            assert 1 <= int(answer.headers["retry-after-ms"]) / 1000 <= 2
        assert await statuses(gate) == (200, 200 if mode == "shadow" else 401)
        assert gate.count(EventKind.FAULT) == 0


async def test_switched_off() -> None:
    """`off` does not look at load; it is no way in."""
    async with bed(**LOCKED) as gate:
        gate.gate.mode = "off"
        assert await statuses(gate) == (200, 401)
        assert gate.count(EventKind.ADMITTED) == 0
        gate.gate.mode = "enforce"
        assert await statuses(gate) == (200, 401)


async def test_a_trial_costs_nobody_a_request() -> None:
    """`shadow` lets everybody pass, and tells."""
    async with bed(**LOCKED, mode="shadow") as gate:
        assert await statuses(gate) == (200, 200)
        assert gate.count(EventKind.SHADOWED) == 1
