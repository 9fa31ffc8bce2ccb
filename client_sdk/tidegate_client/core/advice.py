"""From response headers to what the server asked for.

Law: total (never raises, whatever arrives) and ordered. Precedence: `retry-after-ms`, `Retry-After`, then
`RateLimit` (the draft gives Retry-After precedence over it), then the vendors' resets; the first that yields
a positive time wins. Zero, negative, past or malformed means "no time given", so that the caller backs off
instead of looping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .figures import CEILING_S, decimal, http_date
from .limits import (
    Allowance,
    LimitItem,
    dictionary_wait_s,
    exhausted_wait_s,
    policy_allowance,
    trio_allowance,
    trio_wait_s,
)

_MS_FIELDS = ("retry-after-ms", "x-ms-retry-after-ms")


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """Response headers, ready to be judged.

    Attributes:
        lines: lower-case name to its field lines, in order.
        rate_limit: the items of a `RateLimit` list, when it parsed as one.
        rate_limit_members: its members, when it parsed as a -07 dictionary instead.
        policies: the items of `RateLimit-Policy`, or of a `RateLimit-Limit` that lists windows.
    """

    lines: Mapping[str, Sequence[str]]
    rate_limit: Sequence[LimitItem] = ()
    rate_limit_members: Mapping[str, object] = dataclasses.field(default_factory=dict)
    policies: Sequence[LimitItem] = ()

    def single(self, name: str) -> str:
        """The field's lines joined as RFC 9110, section 5.3, joins them; empty when absent."""
        return ", ".join(self.lines.get(name, ()))


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """What an answer's headers ask of the caller.

    Attributes:
        wait_s: seconds to wait before coming back, more than 0; None when no usable time was given.
        source: the header it came from, `none` without one.
        should_retry: the server's explicit word (`x-should-retry`), None when it gave none.
        nothing_left_s: seconds for which `RateLimit` says that nothing remains; also set on successful
            answers.
    """

    wait_s: float | None = None
    source: str = "none"
    should_retry: bool | None = None
    nothing_left_s: float | None = None


NO_ADVICE = Advice()


def read_advice(fields: Fields, wall_now: float) -> Advice:
    """What `fields` advise, told the wall clock (epoch seconds) for dates where the server sends no
    `Date`.
    """
    cached = (decimal(fields.single("age")) or 0.0) > 0
    server_now = None if cached else http_date(fields.single("date"), wall_now)
    nothing_left_s, limit_source = (None, "none") if cached else _rate_limit(fields, wall_now)
    wait_s, source = _retry_after(fields, wall_now if server_now is None else server_now, wall_now)
    if wait_s is None and nothing_left_s is not None:
        wait_s, source = nothing_left_s, limit_source
    if wait_s is None and not cached:
        wait_s, source = _vendor(fields, wall_now if server_now is None else server_now)
    verdict = {"true": True, "false": False}.get(fields.single("x-should-retry").strip().lower())
    return Advice(
        None if wait_s is None else min(wait_s, CEILING_S),
        source if wait_s is not None else "none",
        verdict,
        None if nothing_left_s is None else min(nothing_left_s, CEILING_S),
    )


def read_allowance(fields: Fields, wait_s: float | None, wall_now: float) -> Allowance | None:
    """What the server that asked for `wait_s` says it allows from then on; None when it does not say."""
    if (decimal(fields.single("age")) or 0.0) > 0:
        return None
    server_now = http_date(fields.single("date"), wall_now)
    return policy_allowance(fields.policies, fields.rate_limit, wait_s) or trio_allowance(
        _flat(fields), wall_now if server_now is None else server_now
    )


def _retry_after(fields: Fields, server_now: float, wall_now: float) -> tuple[float | None, str]:
    for name in _MS_FIELDS:
        milliseconds = _longest(fields.single(name))
        if milliseconds is not None:
            return milliseconds / 1000, name
    for line in fields.lines.get("retry-after", ()):
        date = http_date(line, wall_now)
        if date is not None:
            return (date - server_now if date > server_now else None), "retry-after"
    return _longest(fields.single("retry-after")), "retry-after"


def _longest(value: str) -> float | None:
    """The longest of comma-joined figures; None when one is malformed or none is above zero."""
    figures = [decimal(part) for part in value.split(",")]
    if any(figure is None for figure in figures):
        return None
    longest = max(figure for figure in figures if figure is not None)
    return longest if longest > 0 else None


def _rate_limit(fields: Fields, wall_now: float) -> tuple[float | None, str]:
    wait_s = exhausted_wait_s(fields.rate_limit) or dictionary_wait_s(fields.rate_limit_members)
    if wait_s:
        return wait_s, "ratelimit"
    trio = trio_wait_s(_flat(fields), wall_now, drafts_only=True)
    return (None, "none") if trio is None else trio


def _vendor(fields: Fields, server_now: float) -> tuple[float | None, str]:
    found = trio_wait_s(_flat(fields), server_now)
    return (None, "none") if found is None else found


def _flat(fields: Fields) -> dict[str, str]:
    """The rate-limit fields by name. A list-valued one (`100, 100;w=10`) keeps its first member, drafts -00
    to -03.
    """
    return {
        name: lines[0].split(",")[0]
        for name, lines in fields.lines.items()
        if "limit" in name and lines and name.count("-")
    }
