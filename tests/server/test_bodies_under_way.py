"""Bodies that trickle in take room; who they turn away, and when it is given back."""

from __future__ import annotations

import pytest

from tests.server.bed import bed, until
from tests.server.test_waiting_cases import Upload
from tidegate.asgi.reading import SMALL_BYTES, BytesHeld, NoRoom

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
    held = BytesHeld(MOST, queued_bytes=lambda: MOST)
    body = held.body()
    for _ in range(4):
        body.arrived(SMALL_BYTES // 4)
    with pytest.raises(NoRoom):
        body.arrived(1)
    body.end()
    assert held.held_bytes == 0
    tiny = BytesHeld(640, queued_bytes=lambda: 640).body()
    tiny.arrived(10)
    with pytest.raises(NoRoom):
        tiny.arrived(1)
