"""What an attempt tells the server, and how long it may take.

Law: the request goes out as the caller made it, but for the headers named here. `Idempotency-Key` stays the
same over all attempts of a call, so that the server can tell a retry from new work. The attempt is numbered.
A caller that will leave says when, so that nobody works for someone who has gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .identity import Sent

ATTEMPT_HEADER = "tidegate-attempt"
SDK_ATTEMPT_HEADER = "x-stainless-retry-count"
_ATTEMPT = ATTEMPT_HEADER.encode()
_SDK_ATTEMPT = SDK_ATTEMPT_HEADER.encode()
_KEYED_METHODS = frozenset({"POST", "PATCH"})
_OWN_KEY = "tidegate_idempotency_key"
_WAIT = re.compile(r"(?:^|,)[ \t]*wait[ \t]*=[^,]*", re.IGNORECASE)


def stamp(request: Any, attempt: int, left_s: float | None, *, sdk_numbers: bool) -> None:
    """Number the attempt (from 2 on: a first one needs no number, and every call pays for a header) and say
    for how many seconds the caller stays (None: no limit), beside whatever else the caller prefers.

    SDKs that number their own attempts (OpenAI, Anthropic and kin: `sdk_numbers`) keep their header,
    counted on.
    """
    headers = request.headers
    if attempt > 1:
        name, number = (SDK_ATTEMPT_HEADER, attempt - 1) if sdk_numbers else (ATTEMPT_HEADER, attempt)
        headers[name] = str(number)
    if left_s is not None:
        others = _WAIT.sub("", headers.get("prefer", "")).strip(", \t")
        wait = f"wait={max(1, int(left_s))}"
        headers["prefer"] = f"{others}, {wait}" if others else wait


def forget_number(request: Any, sent: Sent) -> None:
    """Take off the number that an earlier call left on the same request, or on the one it was redirected
    from.
    """
    if _ATTEMPT in sent:
        del request.headers[ATTEMPT_HEADER]


def counted_by_sdk(sent: Sent) -> int | None:
    """How many tries an SDK on top says it has made of this call before; None when none counts."""
    count = sent.get(_SDK_ATTEMPT)
    if count is None:
        return None
    return int(count) if count.isdigit() and len(count) < 6 else 0


def key_for(request: Any, sent: Sent, former: str | None, token: Callable[[], str]) -> str | None:
    """Give a request that makes something an `Idempotency-Key`; returns it, None when none of ours is there.

    A key of the caller's own stays. One of ours is renewed when the same request object is sent as a new
    call; `former` is the key of the call that this one continues; `token` makes new ones.
    """
    if request.method not in _KEYED_METHODS:
        return None
    there = sent.get(b"idempotency-key")
    if there is not None and there.decode("latin-1") != request.extensions.get(_OWN_KEY):
        return None
    chosen = former or f'"{token()}"'
    request.headers["idempotency-key"] = request.extensions[_OWN_KEY] = chosen
    return chosen


class Timeouts:
    """The caller's own time-outs of a request, capped at what is left of its deadline while an attempt runs.

    HTTP libraries look a time-out up when its phase begins, so each phase is given what the ones before it
    have left over.

    Args:
        request: whose time-outs.
        until: the deadline, an instant of the clock that `monotonic` reads.
    """

    def __init__(self, request: Any, until: float, monotonic: Callable[[], float]) -> None:
        self._request = request
        self._left_s: Callable[[], float] = lambda: until - monotonic()
        self._own = dict(request.extensions.get("timeout", {}))

    def cap(self) -> None:
        """No phase of the attempt that begins may outlast the deadline."""
        left_s = max(self._left_s(), _LEAST_S)
        own = {phase: self._own.get(phase) for phase in _PHASES}
        capped = _Capped({phase: left_s if s is None else min(s, left_s) for phase, s in own.items()})
        capped.left_s = self._left_s
        self._request.extensions = {**self._request.extensions, "timeout": capped}

    def give_back(self) -> None:
        """From here on the body is the caller's, and so are the time-outs of its reads.

        It is the same mapping that has to change: the library keeps hold of it.
        """
        capped = self._request.extensions["timeout"]
        capped.left_s = None
        capped.clear()
        capped.update(self._own)


_PHASES = ("connect", "read", "write", "pool")
_LEAST_S = 0.001


class _Capped(dict[str, Any]):
    """Time-outs by phase; while `left_s` is set, none is longer than it says at the moment of asking."""

    left_s: Callable[[], float] | None = None

    def get(self, phase: str, default: Any = None) -> Any:
        value = super().get(phase, default)
        return value if self.left_s is None else min(value, max(self.left_s(), _LEAST_S))
