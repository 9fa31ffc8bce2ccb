"""Bodies that trickle in take room; who they turn away, and when it is given back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.server.bed import Level, Raw, Upload, bed, until
from tidegate.asgi.bytes_held import SILENT_S, SMALL_BYTES, BytesHeld, NoRoom

MOST = 16 * SMALL_BYTES * 64


async def test_stalled_uploads_do_not_close_the_gate() -> None:
    """A handful of connections that stop half-way through large bodies; everybody's small ones go on."""
    async with bed(queue={"max_bytes": 100_000}) as gate:
        stalled = [Upload(gate.gate) for _ in range(10)]
        for upload in stalled:
            upload.push(b"x" * 10_000)
        await until(lambda: gate.runtime.door._admission._bodies.held_bytes == 100_000)
        assert (await gate.post()).status_code == 200
        large = await gate.post(b"x" * 20_000)
        assert large.status_code == 429
        assert large.json()["error"]["reason"] == "queue_full"
        for upload in stalled:
            upload.leave()
            await upload.task
        assert gate.runtime.door._admission._bodies.held_bytes == 0
        assert (await gate.post(b"x" * 20_000)).status_code == 200


def test_what_is_small_is_told_by_the_body_and_the_bound() -> None:
    """Counted from its first byte: many parts make no small body."""
    held = BytesHeld(MOST, queued_bytes=lambda: MOST, clock=lambda: 0.0)
    body = held.body()
    for _ in range(4):
        body.arrived(SMALL_BYTES // 4)
    with pytest.raises(NoRoom):
        body.arrived(1)
    body.end()
    assert held.held_bytes == 0
    tiny = BytesHeld(640, queued_bytes=lambda: 640, clock=lambda: 0.0).body()
    tiny.arrived(10)
    with pytest.raises(NoRoom):
        tiny.arrived(1)


async def test_what_has_fallen_silent_gives_way_to_what_comes() -> None:
    """A large body that stalls is refused in the place of one whose caller is sending."""
    async with bed(queue={"max_bytes": 100_000}, level=Level(capacity_tokens=1_000_000)) as gate:
        bodies, now = gate.runtime.door._admission._bodies, 0.0
        bodies._clock = lambda: now
        stalled = [Upload(gate.gate) for _ in range(4)]
        for number, upload in enumerate(stalled):
            now = number / 100
            upload.push(b"x" * 25_000)
            await until(lambda held=(number + 1) * 25_000: bodies.held_bytes == held)  # type: ignore[misc]
        assert (await gate.post(b"x" * 40_000)).status_code == 429, "they have not been silent for long"
        now += SILENT_S - 0.01
        coming = Upload(gate.gate)
        coming.push(b"x" * 40_000)
        await asyncio.gather(stalled[0].task, stalled[1].task)
        assert [upload.status for upload in stalled] == [429, 429, None, None]
        for upload in (coming, *stalled[2:]):
            upload.push(b"", more=False)
            await upload.task
            assert upload.status == 200
        assert bodies.held_bytes == 0
        assert not bodies._large


async def test_bodies_being_read_count_against_the_queues_bytes() -> None:
    """Slow uploads cannot take more memory than the queue may; what they held is given back."""
    async with bed(queue={"max_bytes": 10_000}, level=Level(capacity_tokens=1_000_000)) as b:
        slow = Upload(b.gate)
        slow.push(b"x" * 8_000)
        await until(lambda: b.runtime.door._admission._bodies.held_bytes == 8_000)
        other = Upload(b.gate)
        other.push(b"x" * 5_000)
        await other.task
        assert other.sent[0]["status"] == 429
        error = json.loads(other.sent[1]["body"])["error"]
        assert (error["reason"], error["scope"]) == ("queue_full", "model")
        assert dict(other.sent[0]["headers"])[b"retry-after"]
        slow.push(b"", more=False)
        await slow.task
        assert slow.sent[0]["status"] == 200
        assert b.runtime.door._admission._bodies.held_bytes == 0


async def test_shadow_mode_lets_a_slow_body_take_its_time() -> None:
    """Neither time-out nor bytes held end it."""
    settings: dict[str, Any] = {"queue": {"max_bytes": 10}, "body": {"timeout_s": 0.05}}
    async with bed(mode="shadow", **settings) as b:
        slow = Upload(b.gate)
        slow.push(b"x" * 100)
        await asyncio.sleep(0.2)
        slow.push(b"y", more=False)
        await slow.task
        assert b.app.bodies == [b"x" * 100 + b"y"]


async def test_a_body_too_large_to_be_looked_at_is_413() -> None:
    """Else padding would be a way round the field policy; declared or not, and never in shadow mode."""
    for headers in ({}, {"content-length": "101"}):
        async with bed(body={"max_bytes": 100}) as b:
            raw = Raw(b.gate, b'{"priority": -9, "prompt": "' + b"x" * 100 + b'"}', headers)
            await raw.task
            assert raw.status == 413
            error = json.loads(raw.sent[1]["body"])["error"]
            assert "body.max_bytes" in error["message"]
            assert b.app.started == 0
    async with bed(body={"max_bytes": 100, "oversize": "pass"}) as b:
        raw = Raw(b.gate, b"x" * 200)
        await raw.task
        assert (raw.status, b.app.bodies) == (200, [b"x" * 200])
    async with bed(body={"max_bytes": 100}, mode="shadow") as b:
        raw = Raw(b.gate, b"x" * 200)
        await raw.task
        assert (raw.status, b.app.bodies) == (200, [b"x" * 200])
