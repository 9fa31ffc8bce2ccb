"""The typed error of a refusal that stands.

Law: one class to catch, whatever the HTTP library. Each transport raises a subclass that is also the
`HTTPStatusError` of its own library, so that `except httpx.HTTPStatusError` keeps working and the SDKs, which
take transport errors for broken connections and retry those, let it through.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from .core.decision import Why


class RateLimited(Exception):
    """The server refused and waiting longer does not fit what the caller allowed.

    Attributes:
        retry_after: seconds the server asked to wait, None when it named no time.
        retry_at: the same as an aware UTC datetime.
        why: which bound ended the call: `over_budget`, `attempts`, `quota`, `retry_budget`, `cooling_down`,
            `throttled`.
        reason: the server's reason code, empty when it gave none.
        scope: what the refusal covers: `request`, `tenant`, `class` or `model`.
        response: the last answer, its body read. Made by the client itself when nothing was sent.
        attempts: how many attempts were sent.
    """

    def __init__(
        self,
        *,
        why: Why,
        retry_after: float | None,
        wall_now: float,
        reason: str = "",
        scope: str = "tenant",
        message: str = "",
        response: Any = None,
        attempts: int = 0,
    ) -> None:
        self.why = why
        self.retry_after = retry_after
        self.retry_at = _instant(wall_now, retry_after)
        self.reason = reason
        self.scope = scope
        self.response = response
        self.attempts = attempts
        self.server_message = message
        Exception.__init__(self, str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way between processes: a pool whose result cannot be read there breaks as a whole."""
        return _blank, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        after = "no time named" if self.retry_after is None else f"retry after {self.retry_after:g} s"
        said = ": ".join(part for part in (self.reason, self.server_message) if part)
        return (
            f"refused ({self.why.value}, {after}, {self.attempts} attempts sent){f': {said}' if said else ''}"
        )


def _blank(kind: type[RateLimited], args: tuple[Any, ...]) -> RateLimited:
    return kind.__new__(kind, *args)


def _instant(wall_now: float, retry_after: float | None) -> dt.datetime | None:
    if retry_after is None:
        return None
    try:
        return dt.datetime.fromtimestamp(wall_now + retry_after, tz=dt.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return dt.datetime.max.replace(tzinfo=dt.timezone.utc)
