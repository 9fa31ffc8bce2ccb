"""What clouds say of a refusal in its body alone: Google in typed details, OpenRouter in headers it encloses,
OpenAI and Azure in a sentence.

Law: total, and bounded in what is looked at. Details and headers are data and count as such. A sentence is
written for people: it is read by a narrow grammar of whole durations, and all it can tell is a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .figures import CEILING_S, duration_s

_MOST_ITEMS = 32
_MOST_CHARS = 4096
_OF_A_DAY = re.compile(r"PerDay|Daily")

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,12})?"
_UNIT = r"(?:milliseconds?|ms|seconds?|s|minutes?|m|hours?|h)"
_NEXT = r",? and |, | "
_PART = re.compile(rf"({_NUMBER}) ?({_UNIT})(?![a-z])", re.IGNORECASE | re.ASCII)
_DURATION = rf"(?:{_NUMBER} ?{_UNIT}(?:{_NEXT})?){{1,6}}"
_SENTENCE = re.compile(
    rf"\b(?:try again|retry) (?:in|after) ({_DURATION})(?!(?:{_NEXT})?[0-9]|[a-z])", re.IGNORECASE | re.ASCII
)
_BY_INITIALS_S = {
    "ms": 1e-3,
    "mil": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "hou": 3600.0,
}


def details_wait_s(details: object) -> float | None:
    """The longest `retryDelay` (`google.rpc.RetryInfo`) among an error's details, in seconds; None without
    one.
    """
    delays = (detail.get("retryDelay") for detail in _mappings(details))
    waits = [duration_s(delay) for delay in delays if isinstance(delay, str)]
    return max((wait for wait in waits if wait), default=None)


def is_daily_quota(details: object) -> bool:
    """Whether a `google.rpc.QuotaFailure` names a quota of a day. The `retryDelay` that Google sends along is
    then still one of seconds, after which nothing has changed.
    """
    quotas = (
        violation.get("quotaId")
        for detail in _mappings(details)
        for violation in _mappings(detail.get("violations"))
    )
    return any(isinstance(quota, str) and _OF_A_DAY.search(quota[:_MOST_CHARS]) for quota in quotas)


def enclosed_headers(metadata: object) -> tuple[tuple[str, str], ...]:
    """The headers of another server's answer that an error's metadata enclose, as OpenRouter's do."""
    headers = metadata.get("headers") if isinstance(metadata, Mapping) else None
    if not isinstance(headers, Mapping):
        return ()
    lines = ((name, value) for name, value in list(headers.items())[:_MOST_ITEMS])
    return tuple((name, value) for name, value in lines if isinstance(name, str) and isinstance(value, str))


def sentence_wait_s(message: object) -> float | None:
    """The longest time after which a message asks to come back, in seconds, None without one: `try again in
    1m3.5s`, `retry in 47.43s`, `retry after 7 seconds`.
    """
    if not isinstance(message, str):
        return None
    durations = (match.group(1) for match in _SENTENCE.finditer(message[:_MOST_CHARS]))
    waits = (
        sum(float(number) * _BY_INITIALS_S[unit.lower()[:3]] for number, unit in _PART.findall(duration))
        for duration in durations
    )
    return min(max(waits, default=0.0), CEILING_S) or None


def _mappings(items: object) -> Iterator[Mapping[str, object]]:
    """The objects among the first few members of a JSON array."""
    if isinstance(items, list):
        yield from (item for item in items[:_MOST_ITEMS] if isinstance(item, Mapping))
