"""From an HTTP library's headers to the core's `Fields`: the only place that parses structured fields.

Law: total. A `RateLimit` field that is neither a list of named items nor a dictionary is ignored whole (RFC
9651, section 4.2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import http_sf

from .core.advice import Advice, Fields, read_advice
from .core.limits import LimitItem
from .core.refusal import NO_REFUSAL, Refusal, read_refusal

_NAMES = frozenset({"retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-should-retry", "date", "age"})
_MAX_LINES = 64


def advice_from(headers: Iterable[tuple[str, str]], wall_now: float) -> Advice:
    """What a response's `headers` (all lines, in order) advise, told the wall clock in epoch seconds."""
    return read_advice(fields_from(headers), wall_now)


def fields_from(headers: Iterable[tuple[str, str]]) -> Fields:
    """The fields that bear on retrying, structured ones parsed."""
    lines: dict[str, list[str]] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        if (name in _NAMES or "limit" in name) and (name in lines or len(lines) < _MAX_LINES):
            lines.setdefault(name, []).append(value)
    if "ratelimit" not in lines:
        return Fields(lines)
    text = ", ".join(lines["ratelimit"])
    items = _items(text)
    return Fields(lines, items or (), {} if items is not None else _members(text))


def refusal_from(content: bytes) -> Refusal:
    """The refusal in a response body; a body that is not JSON says nothing."""
    try:
        return read_refusal(json.loads(content))
    except (ValueError, RecursionError):
        return NO_REFUSAL


def _items(text: str) -> list[LimitItem] | None:
    items: list[LimitItem] = []
    for member in _parsed(text, "list") or [None]:
        match member:
            case (str() | http_sf.Token() as name, dict() as parameters):
                items.append(LimitItem(str(name), parameters))
            case _:
                return None
    return items


def _members(text: str) -> dict[str, object]:
    members = _parsed(text, "dictionary")
    return {name: member[0] for name, member in members.items()} if isinstance(members, dict) else {}


def _parsed(text: str, kind: str) -> Any:
    """The structured field in http-sf's own shapes; None when it is malformed."""
    try:
        return http_sf.parse(text.encode("latin-1", "replace"), tltype=kind)
    except (ValueError, RecursionError):
        return None
