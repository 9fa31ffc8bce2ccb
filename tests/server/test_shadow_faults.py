"""Shadow mode holds nothing back: not for a fault of ours either, whatever is set for faults."""

from __future__ import annotations

import pytest

from tests.server.bed import bed, explode, until
from tidegate.asgi.faults import TRIP_COUNT


async def test_a_closed_gate_in_shadow_lets_a_fault_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """`on_internal_error = closed` is for enforcing; a trial must not cost a request."""
    async with bed(mode="shadow", on_internal_error="closed") as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        assert [(await b.post()).status_code for _ in range(TRIP_COUNT + 1)] == [200] * (TRIP_COUNT + 1)
        assert b.runtime.faults.count == TRIP_COUNT + 1


@pytest.mark.parametrize("faults", [1, TRIP_COUNT])
async def test_the_bound_of_a_broken_gate_is_not_for_shadow(
    faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the gate opens itself nor afterwards; once it enforces again, the bound holds."""
    async with bed(mode="shadow", internal_error_concurrency=1) as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        for _ in range(faults):
            await b.post()
        assert b.runtime.faults.is_passing_through() == (faults == TRIP_COUNT)
        b.app.go.clear()
        inside = [b.send() for _ in range(3)]
        await until(lambda: b.app.running == 3)
        b.gate.mode = "enforce"
        inside.append(b.send())
        await until(lambda: b.app.running == 4)
        assert (await b.post()).status_code == 503
        b.app.go.set()
        assert [(await sent).status_code for sent in inside] == [200] * 4
