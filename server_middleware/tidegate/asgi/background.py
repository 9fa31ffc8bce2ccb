"""Responses that go on in the background: their leases outlive the request that started them.

Law of this file: a lease is held until the end of its response is seen in an answer that passes by
(polled, streamed, cancelled, deleted, or gone), until the engine's own figures leave no room for it, or
until its bound expires. Nothing is ever asked of the app, and what passes is not changed. Memory is
bounded.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.asgi.classify import segments
from tidegate.asgi.readers import token_count
from tidegate.asgi.types import Message, Scope, Send
from tidegate.asgi.unseen import Surplus
from tidegate.core.decisions import Ending
from tidegate.core.statistics import InstanceStatistics

BOUND_S = 900.0  # nobody has asked for the response for so long that it must have ended
MAX_HELD = 10_000
_END_OF: dict[str, Ending] = {
    "completed": Ending.COMPLETED,
    "incomplete": Ending.COMPLETED,
    "failed": Ending.FAILED,
    "cancelled": Ending.ABANDONED,
}
_LONGEST_BYTES = 1024 * 1024
_ID_WITHIN_BYTES = 64 * 1024
_ID = re.compile(rb'"id"\s*:\s*"(resp[\w.:-]{1,128})"')
_TERMINAL = frozenset(f"response.{status}" for status in _END_OF)


@dataclass(frozen=True, slots=True)
class Seen:
    """What an answer says of a response: how it ended, `None` while it runs; and its usage."""

    ending: Ending | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


Close = Callable[[Seen], None]


class ResponseReader:
    """Reads a response object, or a stream of its events, as it passes by."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.response_id: str | None = None

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the body."""
        is_beginning = len(self._data) < _ID_WITHIN_BYTES
        self._data += chunk
        if self.response_id is None and is_beginning:
            match = _ID.search(self._data, 0, _ID_WITHIN_BYTES)
            self.response_id = match[1].decode("ascii") if match is not None else None
        if len(self._data) > _LONGEST_BYTES:
            del self._data[: _LONGEST_BYTES // 2]

    def drop(self) -> None:
        """Keep no more than the id."""
        self._data = bytearray()

    def seen(self) -> Seen:
        """What has been read says so far."""
        if self._data.lstrip()[:1] == b"{":
            return _of_response(_decoded(self._data))
        for line in reversed(self._data.splitlines()):
            event = _decoded(line[5:]) if line.startswith(b"data:") else {}
            if event.get("type") in _TERMINAL:
                response = event.get("response")
                return _of_response(response if isinstance(response, dict) else {})
        return Seen()


class BackgroundLeases:
    """The leases whose requests have been answered and whose responses still run.

    Args:
        clock: monotonic seconds.
        on_let_go: called with the reason (`idle`, `expired`, `crowded`) when a lease ends unseen.
    """

    def __init__(
        self, clock: Callable[[], float], on_let_go: Callable[[str], None] = lambda reason: None
    ) -> None:
        self._clock = clock
        self._on_let_go = on_let_go
        self._surplus = Surplus()
        self._held: OrderedDict[str, tuple[Close, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, response_id: str, close: Close) -> None:
        """Keep the lease; `close` is called exactly once."""
        self._end(response_id, Seen(Ending.ABANDONED))
        self._held[response_id] = (close, self._clock())
        if len(self._held) > MAX_HELD:
            self._let_go("crowded")

    def look_after(self, instances: Sequence[InstanceStatistics], streams_at: Callable[[float], int]) -> None:
        """Let go of those that must have ended; called about once a second.

        Args:
            instances: what the engines say.
            streams_at: how many streams of other leases were surely in the engine at an instant.
        """
        now = self._clock()
        while self._held and next(iter(self._held.values()))[1] + BOUND_S <= now:
            self._let_go("expired")
        since = [held_since for _, held_since in self._held.values()]
        for _ in range(self._surplus.take(instances, since, streams_at, now)):
            self._let_go("idle")

    def watching(self, scope: Scope, send: Send) -> Send:
        """The `send` for a request that is not guarded: it sees the end of a held response go by."""
        response_id = self._asked_for(scope)
        if response_id is None:
            return send
        reader, status = ResponseReader(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            await send(message)
            if message["type"] == "http.response.start":
                status = int(message["status"])
            elif message["type"] == "http.response.body":
                reader.feed(message.get("body", b""))
                if not message.get("more_body", False):
                    self._look(response_id, scope, status, reader.seen())

        return watched

    def _asked_for(self, scope: Scope) -> str | None:
        if not self._held or scope["type"] != "http":
            return None
        # Not `segments`, which folds case: ids are compared as they are.
        parts = [part for part in str(scope.get("path", "")).split("/") if part]
        if "responses" not in segments(scope.get("path", "")):
            return None
        return next((part for part in parts if part in self._held), None)

    def _look(self, response_id: str, scope: Scope, status: int, seen: Seen) -> None:
        is_deleted = scope.get("method") == "DELETE" and 200 <= status < 300
        if is_deleted or status == 404:
            self._end(response_id, Seen(Ending.ABANDONED))
        elif seen.ending is not None and 200 <= status < 300:
            self._end(response_id, seen)

    def _let_go(self, reason: str) -> None:
        """The oldest one."""
        self._on_let_go(reason)
        self._end(next(iter(self._held)), Seen(Ending.ABANDONED))

    def _end(self, response_id: str, seen: Seen) -> None:
        held = self._held.pop(response_id, None)
        if held is not None:
            held[0](seen)


def _decoded(data: bytes | bytearray) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _of_response(response: dict[str, Any]) -> Seen:
    status = response.get("status")
    ending = _END_OF.get(status) if isinstance(status, str) else None
    usage = response.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return Seen(ending, token_count(counts.get("input_tokens")), token_count(counts.get("output_tokens")))
