"""Shadow mode: decided and counted, and nothing done."""

from __future__ import annotations

from tests.server.bed import bed
from tidegate.telemetry.events import EventKind


async def test_shadow_mode_answers_nothing_by_itself_and_changes_nothing() -> None:
    """No 401, no 400, no cut field, no 503 while draining: the app gets what came, the events tell."""
    async with bed(mode="shadow", identity={"require_key": True}) as b:
        body = b'{"prompt": "x", "priority": -9, "n": 100000}'
        assert (await b.post(body)).status_code == 200
        b.runtime.drain()
        assert (await b.post(body)).status_code == 200
        assert b.app.bodies == [body, body]
        shadowed = [event.reason for event in b.events if event.kind is EventKind.SHADOWED]
        assert shadowed == ["bad_request", "draining"]
    async with bed(mode="shadow") as b:
        assert (await b.post(b'{"prompt": "x", "priority": -9, "n": 100000}')).status_code == 200
        assert b.app.bodies == [b'{"prompt": "x", "priority": -9, "n": 100000}']
