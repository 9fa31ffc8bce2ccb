"""The wire codec, writer half: a refusal as headers; and what callers say in theirs.

Law of this file: what is written is true and fit for its recipient (whole seconds in `Retry-After`,
never a date; deltas in `RateLimit`, an epoch in `X-RateLimit-Reset`), and what is read never raises:
a malformed header is no header.

Rules: RFC 9110 (Retry-After), draft-ietf-httpapi-ratelimit-headers-10 (RateLimit, RateLimit-Policy),
RFC 9651 (structured fields), RFC 7240 (Prefer), draft-ietf-httpapi-idempotency-key-header-06.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

import http_sf

from tidegate.asgi.types import HeaderList, Headers, first_header, list_header
from tidegate.core.decisions import Reason, Refuse
from tidegate.core.quota import Left

_LARGEST_INTEGER = 999_999_999_999_999  # of a structured field
_ROUNDING = 5e-7  # float error above a whole figure does not make it the next one
_BOUNDS: dict[Reason, str] = {
    Reason.RATE_LIMITED: "requests",
    Reason.TOKEN_RATE_LIMITED: "tokens",
    Reason.QUEUE_FULL: "queue",
    Reason.TENANT_QUEUE_FULL: "tenant-queue",
}
_FINAL = (Reason.SUPERSEDED, Reason.PROMPT_TOO_LARGE, Reason.COST_ABOVE_BURST)
"""No waiting helps: SDKs retry 409 and 429 alike, so these must say that they should not."""
_NO_STORE = (b"cache-control", b"no-store")
_NO_WAIT = (b"server-timing", b"tidegate;dur=0.0")
_RETRY = (b"x-should-retry", b"true")
_UNITS = {"requests": b'qu="requests"', "tokens": b'tidegate-unit="tokens"'}
_SEATS = b'qu="concurrent-requests"'


def bound_name(reason: Reason) -> str:
    """The name under which `RateLimit` speaks of the bound that bit."""
    return _BOUNDS.get(reason, "capacity")


def retry_after_ms(refuse: Refuse) -> int | None:
    """The exact wait, rounded up to the millisecond, so that whoever waits it out is not early.

    `None` for a permanent refusal, and for one whose successor is already running.
    """
    if refuse.retry_after_s is None or refuse.reason in _FINAL:
        return None
    return max(1, _ceil(refuse.retry_after_s * 1000))


def _ceil(figure: float) -> int:
    if 0 <= figure <= _LARGEST_INTEGER:  # false for NaN too
        return math.ceil(figure - _ROUNDING)
    return 60 if not math.isfinite(figure) else 0 if figure < 0 else _LARGEST_INTEGER


def _floor(figure: float) -> int:
    if 0 <= figure <= _LARGEST_INTEGER:
        return int(figure)
    return _LARGEST_INTEGER if _LARGEST_INTEGER < figure < math.inf else 0


@lru_cache(maxsize=64)
def reason_header(reason: str) -> tuple[bytes, bytes]:
    """The reason code where access logs and proxies see it: they do not read bodies."""
    return b"tidegate-reason", reason.encode("ascii")


def refusal_headers(
    refuse: Refuse, *, wall_now_s: float, expose_limits: bool = True, send_policy: bool = False
) -> HeaderList:
    """As `headers_of`, for a decision alone."""
    return headers_of(refuse, retry_after_ms(refuse), wall_now_s, expose_limits, send_policy)


def headers_of(
    refuse: Refuse, milliseconds: int | None, wall_now_s: float, expose_limits: bool, send_policy: bool
) -> HeaderList:
    """Everything a client needs to come back at the right time, or not at all.

    Args:
        refuse: the decision.
        milliseconds: its exact wait, see `retry_after_ms`.
        wall_now_s: seconds since the epoch, for `X-RateLimit-Reset` only.
        expose_limits: say how large the bound is; it tells callers about the server's capacity.
        send_policy: also send `RateLimit-Policy`.
    """
    bound, reason = _said_of(refuse.reason)
    if milliseconds is None:
        return [_NO_STORE, (b"x-should-retry", b"false"), reason]
    seconds = -(-milliseconds // 1000)
    reset_after_s = milliseconds / 1000 if refuse.reset_after_s is None else refuse.reset_after_s
    remaining, reset_s = _floor(refuse.remaining), min(_ceil(reset_after_s), seconds)
    headers = [
        (b"retry-after", b"%d" % seconds),
        (b"retry-after-ms", b"%d" % milliseconds),
        (b"ratelimit", b"%b;r=%d;t=%d" % (bound, remaining, reset_s)),
        _NO_STORE,
        _RETRY,
        reason,
    ]
    if expose_limits and refuse.limit is not None:
        limit = _ceil(refuse.limit)
        headers += [
            (b"x-ratelimit-limit", b"%d" % limit),
            (b"x-ratelimit-remaining", b"%d" % remaining),
            (b"x-ratelimit-reset", b"%d" % _ceil(wall_now_s + reset_after_s)),
        ]
        if send_policy:
            unit = _UNITS.get(bound_name(refuse.reason), _SEATS)
            headers.append((b"ratelimit-policy", b"%b;q=%d;%b" % (bound, limit, unit)))
    return headers


@lru_cache(maxsize=len(Reason))
def _said_of(reason: Reason) -> tuple[bytes, tuple[bytes, bytes]]:
    """The bound's name as a structured string, and the reason's line."""
    return _name(bound_name(reason)), reason_header(reason.value)


def quota_headers(left: Sequence[Left], *, send_policy: bool) -> HeaderList:
    """What is left of a tenant's quota, for a caller that was admitted; nothing where it has none.

    Where nothing is left, `t` is when there will be some, as in a refusal; else when all of it is back.
    """
    if not left:
        return []
    items = [b"%b;r=%d;t=%d" % (_name(row.name), _floor(row.remaining), _ceil(row.reset_s)) for row in left]
    lines = [(b"ratelimit", b", ".join(items))]
    if send_policy:
        policies = [b"%b;q=%d;%b" % (_name(row.name), _ceil(row.limit), _UNITS[row.name]) for row in left]
        lines.append((b"ratelimit-policy", b", ".join(policies)))
    return lines


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    """As a structured string; integers stand there as they are, so lines are put together from it."""
    return http_sf.ser(name).encode("ascii")


def server_timing(waited_s: float) -> tuple[bytes, bytes]:
    """How long the request stood in our queue, in milliseconds."""
    if not waited_s:
        return _NO_WAIT
    return b"server-timing", f"tidegate;dur={waited_s * 1000:.1f}".encode("ascii")


def preference_applied(headers: Headers) -> HeaderList:
    """`Preference-Applied` for a caller whose `Prefer: wait=N` bounds its time in our queue (RFC 7240)."""
    wait_s = parse_prefer_wait(headers)
    return [] if wait_s is None else [(b"preference-applied", b"wait=%d" % wait_s)]


# --- what callers say -------------------------------------------------------------------------------

_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_PREFERENCE = re.compile(r"""\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?""", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and _SECONDS.fullmatch(value) else None


def parse_prefer_wait(headers: Headers) -> float | None:
    """`Prefer: wait=N`, in seconds: how long the caller is ready to wait for the whole answer."""
    for preference in list_header(headers, b"prefer").split(","):
        if (match := _PREFERENCE.fullmatch(preference)) is not None:
            return float(match[1])
    return None


def parse_read_timeout(headers: Headers) -> float | None:
    """`X-Stainless-Read-Timeout`, in seconds: how much silence the caller's SDK bears."""
    return _seconds(first_header(headers, b"x-stainless-read-timeout")) or None


def parse_idempotency_key(headers: Headers) -> str | None:
    """`Idempotency-Key`: a structured string as the draft asks, or the bare token that many send."""
    value = first_header(headers, b"idempotency-key")
    if value is None or len(value) > 300:
        return None
    if value.startswith('"'):
        try:
            parsed = http_sf.parse(value.encode("latin-1"), tltype="item")
        except ValueError:
            return None
        value = parsed[0] if isinstance(parsed, tuple) and isinstance(parsed[0], str) else ""
    return value if _KEY.fullmatch(value) else None


def parse_attempt(headers: Headers) -> int:
    """Which attempt this is, counted from 1: `Tidegate-Attempt`, or the OpenAI and Anthropic SDKs' count."""
    for name, first in ((b"tidegate-attempt", 0), (b"x-stainless-retry-count", 1)):
        value = first_header(headers, name)
        if value is not None and value.isascii() and value.isdigit() and len(value) <= 6:
            return max(1, int(value) + first)
    return 1
