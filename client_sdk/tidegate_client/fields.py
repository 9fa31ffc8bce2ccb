"""From an HTTP library's answer to the core's values: the only place that parses structured fields and JSON.

Law: total. A `RateLimit` field that is neither a list of named items nor a dictionary is ignored whole (RFC
9651, section 4.2).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

import http_sf

from .core.advice import Advice, Fields, read_advice, read_allowance
from .core.decision import Answered
from .core.limits import Allowance, LimitItem
from .core.refusal import NO_REFUSAL, Refusal, read_refusal

_NAMES = frozenset({"retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-should-retry", "date", "age"})
_MAX_LINES = 64


def answered_from(
    status: int, headers: Sequence[tuple[str, str]], content: bytes, wall_now: float
) -> Answered:
    """All that an answer tells, in its headers or else in its body, as far as that was read."""
    advice, refusal = advice_from(headers, wall_now), refusal_from(content)
    if refusal.enclosed and (refusal.wait_s is None or refusal.in_words):
        clock = [(name, value) for name, value in headers if name.lower() == "date"]
        wait_s = advice_from([*clock, *refusal.enclosed], wall_now).wait_s
        if wait_s is not None:
            refusal = dataclasses.replace(refusal, wait_s=wait_s, in_words=False)
    return Answered(status, advice, refusal, allowance_from(headers, advice.wait_s, wall_now))


def advice_from(headers: Iterable[tuple[str, str]], wall_now: float) -> Advice:
    """What a response's `headers` (all lines, in order) advise, told the wall clock in epoch seconds."""
    return read_advice(fields_from(headers), wall_now)


def allowance_from(
    headers: Iterable[tuple[str, str]], wait_s: float | None, wall_now: float
) -> Allowance | None:
    """What a response's `headers` say the server allows, after the `wait_s` they advise."""
    return read_allowance(fields_from(headers), wait_s, wall_now)


def fields_from(headers: Iterable[tuple[str, str]]) -> Fields:
    """The fields that bear on retrying, structured ones parsed."""
    lines: dict[str, list[str]] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        if (name in _NAMES or "limit" in name) and (name in lines or len(lines) < _MAX_LINES):
            lines.setdefault(name, []).append(value)
    policies = _policies(lines)
    if "ratelimit" not in lines:
        return Fields(lines, policies=policies)
    text = ", ".join(lines["ratelimit"])
    items = _items(text)
    return Fields(lines, items or (), {} if items is not None else _members(text), policies)


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


def _policies(lines: dict[str, list[str]]) -> list[LimitItem]:
    """The policies in any generation of the draft: `"burst";q=100;w=60`, or `100;w=60` and no name."""
    policies: list[LimitItem] = []
    for name in ("ratelimit-policy", "ratelimit-limit"):
        for member in _parsed(", ".join(lines.get(name, ())), "list") or ():
            match member:
                case (str() | http_sf.Token() as item, dict() as parameters):
                    policies.append(LimitItem(str(item), parameters))
                case (int() as quota, dict() as parameters):
                    policies.append(LimitItem("", {"q": quota, **parameters}))
    return policies


def _members(text: str) -> dict[str, object]:
    members = _parsed(text, "dictionary")
    return {name: member[0] for name, member in members.items()} if isinstance(members, dict) else {}


def _parsed(text: str, kind: str) -> Any:
    """The structured field in http-sf's own shapes; None when it is malformed."""
    try:
        return http_sf.parse(text.encode("latin-1", "replace"), tltype=kind)
    except (ValueError, RecursionError):
        return None
