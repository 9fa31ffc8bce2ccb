"""Bodies that trickle in take room; who they turn away, and when it is given back."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.bed import Level, bed, until
from tests.server.test_waiting_cases import Upload
from tidegate.asgi.reading import SILENT_S, SMALL_BYTES, BytesHeld, NoRoom

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
