"""A reader too slow for its stream."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.bed import Raw, bed, until
from tidegate.asgi.types import Message, Receive, Scope, Send


async def test_a_send_that_hangs_on_a_slow_reader_is_told_to_the_ledger_and_taken_back() -> None:
    """Seen although chunks go straight to the server's own send; the stream goes on when the reader does."""
    drained = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with bed(app) as b:
        raw = SlowReader(b.gate, drained)
        await until(lambda: raw.is_waiting)
        clock = b.runtime._parts.clock
        [(lease, *_)] = b.runtime.room.gate._books.running._places.values()

        def is_blocked() -> bool:
            return lease.blocked_since is not None

        b.runtime.door.look_for_blocked_sends(clock())
        assert not is_blocked(), "not yet"
        b.runtime.door.look_for_blocked_sends(clock() + 2)
        assert is_blocked()
        drained.set()
        await raw.task
        assert not is_blocked()
        assert b.runtime.statistics().running == 0


class SlowReader(Raw):
    """Its first chunk hangs until the test lets it go."""

    def __init__(self, gate: Any, drained: asyncio.Event) -> None:
        super().__init__(gate, b'{"prompt": "x", "stream": true}')
        self._drained = drained
        self.is_waiting = False

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.is_waiting = True
            await self._drained.wait()
        await super()._send(message)
