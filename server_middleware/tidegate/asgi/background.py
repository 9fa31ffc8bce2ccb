"""Leases of background responses, which go on after their request has been answered.

Law of this file: a lease handed over here ends exactly once: when a poll, a cancellation or a stream of
the same response shows its end, when its bound expires, or when the server stops. What the app
answers to polls passes untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.asgi.classify import Dialect, Route, response_id
from tidegate.asgi.stream import OutputCounter
from tidegate.asgi.types import Message, Scope, Send

Usage = tuple[int | None, int | None]
Release = Callable[[Usage | None], None]
"""Ends the lease; told (prompt tokens, output tokens) where they are known."""

_POLL = Route(Dialect.OPENAI_RESPONSES, True, "/v1/responses")


@dataclass(frozen=True, slots=True)
class _Held:
    release: Release
    expires_at: float


class BackgroundLeases:
    """The background responses under way.

    Args:
        max_s: a response not seen to end is taken as ended after so many seconds.
        max_responses: held at once; the oldest gives way, since a lease must not be lost in a leak.
    """

    def __init__(self, max_s: float = 3600.0, max_responses: int = 10_000) -> None:
        self._max_s = max_s
        self._max_responses = max_responses
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, counter: OutputCounter, release: Release, now: float) -> bool:
        """Takes over the lease of a request whose answer said that the work goes on.

        Returns:
            `False` when the answer did not say so; the lease then ends with the request as usual.
        """
        name = counter.response_id
        if name is None or counter.has_ended:
            return False
        self._end(name, None)
        if len(self._held) >= self._max_responses:
            self._end(next(iter(self._held)), None)
        self._held[name] = _Held(release, now + self._max_s)
        return True

    def watch(self, scope: Scope, send: Send) -> Send:
        """The `send` for the app: it sees the end in answers about a held response; else `send` itself."""
        name = response_id(scope) if self._held else None
        if name is None or name not in self._held:
            return send
        counter = OutputCounter(_POLL)

        async def watching(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                counter.feed(bytes(message.get("body", b"")))
                if not message.get("more_body", False):
                    self._look(name, counter)

        return watching

    def expire(self, now: float) -> None:
        """Ends what has not been seen to end in time; to be called about once a second."""
        for name in [name for name, held in self._held.items() if held.expires_at <= now]:
            self._end(name, None)

    def close(self) -> None:
        """Ends everything."""
        for name in tuple(self._held):
            self._end(name, None)

    def _look(self, name: str, counter: OutputCounter) -> None:
        if counter.response_id == name and counter.has_ended:
            self._end(name, counter.usage)

    def _end(self, name: str, usage: Usage | None) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            held.release(usage)
