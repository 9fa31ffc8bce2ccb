"""What a caller says of its request in headers: its patience, whether it was here before, where it goes.

Law of this file: read once, in one pass; a request carries many headers, and most say nothing of this.
A malformed header is no header.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.asgi.headers import (
    parse_attempt,
    parse_idempotency_key,
    parse_prefer_wait,
    parse_read_timeout,
    preference_applied,
)
from tidegate.asgi.types import HeaderList, Headers, first_header

FIRST_BYTE_MARGIN_S = 1.0  # what a caller that bears N s of silence is given for its first byte
_LONGEST_RANK = 6
READ_HERE = frozenset(
    {b"idempotency-key", b"prefer", b"tidegate-attempt", b"x-data-parallel-rank"}
    | {b"x-stainless-read-timeout", b"x-stainless-retry-count"}
)


@dataclass(frozen=True, slots=True)
class Said:
    """A caller's own words.

    Args:
        attempt: which one this is, counted from 1.
        key: the Idempotency-Key.
        wait_s: `Prefer: wait`, for the whole answer.
        silence_s: the longest silence its SDK bears.
        applied: the header that acknowledges `wait_s`.
        rank: of the data-parallel engine that is to serve it, as `#n`; vLLM obeys the same header.
    """

    attempt: int = 1
    key: str | None = None
    wait_s: float | None = None
    silence_s: float | None = None
    applied: tuple[tuple[bytes, bytes], ...] = ()
    rank: str | None = None

    @property
    def was_here_before(self) -> bool:
        """Whether this may be a retry, whose place is kept."""
        return self.attempt > 1 or self.key is not None

    def instants(
        self, clock: Callable[[], float], *, streams: bool, is_silent: bool
    ) -> tuple[float | None, float | None]:
        """(latest start, deadline of the whole answer), as the caller's patience asks for.

        The SDKs' read time-out bounds silence: until the first byte of a stream, or of a whole answer.

        Args:
            clock: monotonic seconds; asked only where there is a bound.
            streams: the answer comes in parts.
            is_silent: nothing is sent before its first byte; comments would end the silence.
        """
        wait_s, silence_s = self.wait_s, self.silence_s
        if wait_s is None and silence_s is None:
            return None, None
        now = clock()
        if not streams:
            given = [bound_s for bound_s in (wait_s, silence_s) if bound_s is not None]
            return None, now + min(given)
        return (
            now + max(0.0, silence_s - FIRST_BYTE_MARGIN_S) if silence_s is not None and is_silent else None,
            None if wait_s is None else now + wait_s,
        )


_NOTHING = Said()


def said(headers: Headers) -> Said:
    """What the headers of a request say."""
    lines: HeaderList = [line for line in headers if line[0] in READ_HERE]
    if not lines:
        return _NOTHING
    return Said(
        attempt=parse_attempt(lines),
        key=parse_idempotency_key(lines),
        wait_s=parse_prefer_wait(lines),
        silence_s=parse_read_timeout(lines),
        applied=tuple(preference_applied(lines)),
        rank=_rank(lines),
    )


def _rank(lines: HeaderList) -> str | None:
    value = first_header(lines, b"x-data-parallel-rank") or ""
    return f"#{int(value)}" if len(value) <= _LONGEST_RANK and value.isascii() and value.isdigit() else None
