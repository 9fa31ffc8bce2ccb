"""Rate-limit fields: the IETF draft in its three generations, and the vendors' own.

Law: a field says how long until more is allowed only for a dimension with nothing left; several such
dimensions mean the longest. A malformed field is ignored whole (draft-ietf-httpapi-ratelimit-headers, section
4). Structured-field syntax is parsed by the caller; here only its meaning is judged.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from .figures import decimal, duration_s, http_date, rfc3339

YEAR_S = 366 * 86400.0
_DELTA_BELOW = 1e6
_EPOCH_S = (1e8, 1e11)
_EPOCH_MS = (1e11, 1e14)

_LONGEST_WINDOW_S = 3600.0
"""A quota of more than an hour (a day, a month) says nothing about how fast to go."""

_TRIO = re.compile(r"(x-)?rate-?limit-(limit|remaining|reset)(-after)?(?:-([a-z0-9-]{1,40}))?")
_ANTHROPIC = re.compile(r"anthropic-ratelimit-([a-z0-9-]{1,40})-(limit|remaining|reset)")


@dataclasses.dataclass(frozen=True, slots=True)
class LimitItem:
    """One member of a `RateLimit` or `RateLimit-Policy` list, syntax already checked: its name (empty for a
    bare number, which is then its `q`) and its parameters as parsed.
    """

    name: str
    parameters: Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True)
class Allowance:
    """What a server says it allows: `quota` requests in `window_s` seconds, both more than 0.

    Of a fixed window whose length is not told this may say too much; whoever paces by it looks at refusals
    too.
    """

    quota: int
    window_s: float


def exhausted_wait_s(items: Iterable[LimitItem]) -> float | None:
    """The longest `t` over the items with `r=0`, in seconds; None when nothing is exhausted or an item is
    malformed.
    """
    longest: float | None = None
    for item in items:
        remaining, wait = item.parameters.get("r"), item.parameters.get("t", 0)
        if not _natural(remaining) or not _natural(wait):
            return None
        if remaining == 0 and "t" in item.parameters:
            longest = max(longest or 0.0, float(str(wait)))
    return longest


def policy_allowance(
    policies: Iterable[LimitItem], items: Iterable[LimitItem], wait_s: float | None
) -> Allowance | None:
    """The policy that has refused: a used-up one by name, else the shortest window that can ask for `wait_s`.

    Policies that count something else than requests, or whose window is not told, say nothing.
    """
    used_up = {item.name for item in items if item.parameters.get("r") == 0}
    stated = [policy for policy in policies if _counts_requests(policy)]
    named = [policy for policy in stated if policy.name in used_up]
    windows = sorted((_figure(policy, "w"), _figure(policy, "q")) for policy in named or stated)
    fitting = [each for each in windows if each[0] >= (wait_s or 0.0)] or windows[-1:]
    if not fitting or fitting[0][0] > _LONGEST_WINDOW_S:
        return None
    return Allowance(int(fitting[0][1]), fitting[0][0])


def _counts_requests(policy: LimitItem) -> bool:
    unit = policy.parameters.get("qu", "requests")
    positive = all(_natural(policy.parameters.get(name)) and policy.parameters[name] != 0 for name in "qw")
    return unit in ("requests", "request") and positive and "tidegate-unit" not in policy.parameters


def _figure(policy: LimitItem, name: str) -> float:
    return float(str(policy.parameters[name]))


def trio_allowance(fields: Mapping[str, str], wall_now: float) -> Allowance | None:
    """The limit of a used-up count of requests (`*RateLimit-Limit/-Remaining/-Reset`), over its reset."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name, value in fields.items():
        key, kind = _dimension(name, drafts_only=False)
        if kind and key[1] in ("", "requests"):
            found.setdefault(key, {}).setdefault(kind, value)
    for each in found.values():
        quota, wait_s = decimal(each.get("limit", "")), reset_s(each.get("reset", ""), wall_now)
        if decimal(each.get("remaining", "")) == 0 and quota and wait_s and wait_s <= _LONGEST_WINDOW_S:
            return Allowance(int(quota), wait_s) if quota >= 1 else None
    return None


def dictionary_wait_s(members: Mapping[str, object]) -> float | None:
    """The wait of the -07 form, `limit=100, remaining=0, reset=30`, in seconds; None unless nothing
    remains.
    """
    remaining, reset = members.get("remaining"), members.get("reset")
    if not _natural(remaining) or not _natural(reset) or remaining != 0:
        return None
    return float(str(reset))


def trio_wait_s(
    fields: Mapping[str, str], wall_now: float, *, drafts_only: bool = False
) -> tuple[float, str] | None:
    """The longest reset of the exhausted dimensions of `*RateLimit-Remaining/-Reset` fields, with the field
    it is from.

    A dimension that names no remaining amount counts as exhausted (the answer was a refusal); one with some
    left
    does not: a limit these fields do not describe has bitten. With `drafts_only` only the unprefixed IETF
        trio of
    drafts -00 to -06 counts, and only when it says that nothing remains.
    """
    remaining: dict[tuple[str, str], str] = {}
    resets: dict[tuple[str, str], tuple[str, str]] = {}
    for name, value in fields.items():
        key, kind = _dimension(name, drafts_only=drafts_only)
        if kind == "remaining":
            remaining[key] = value
        elif kind == "reset":
            resets.setdefault(key, (name, value))
    best: tuple[float, str] | None = None
    for key, (name, value) in resets.items():
        left = decimal(remaining[key]) if key in remaining else None if drafts_only else 0.0
        wait_s = reset_s(value, wall_now) if left == 0 else None
        if wait_s is not None and (best is None or wait_s > best[0]):
            best = (wait_s, name)
    return best


def reset_s(text: str, wall_now: float) -> float | None:
    """Seconds from `wall_now` to a reset written as delta, epoch (s or ms), Go duration, RFC 3339 or
    HTTP-date.

    None when the form is unknown, the instant has passed, or it is more than a year away.
    """
    figure = decimal(text)
    if figure is not None:
        wait_s = _bare_reset_s(figure, wall_now)
    else:
        wait_s = duration_s(text)
        if wait_s is None:
            instant = rfc3339(text)
            instant = http_date(text, wall_now) if instant is None else instant
            wait_s = None if instant is None else instant - wall_now
    return wait_s if wait_s is not None and 0 < wait_s <= YEAR_S else None


def _bare_reset_s(figure: float, wall_now: float) -> float | None:
    if figure < _DELTA_BELOW:
        return figure
    if _EPOCH_S[0] <= figure < _EPOCH_S[1]:
        return figure - wall_now
    if _EPOCH_MS[0] <= figure < _EPOCH_MS[1]:
        return figure / 1000 - wall_now
    return None


def _dimension(name: str, *, drafts_only: bool) -> tuple[tuple[str, str], str]:
    match = _TRIO.fullmatch(name)
    if match is not None:
        prefix, kind, _, dimension = match.groups()
        if not drafts_only or (prefix is None and dimension is None):
            return (prefix or "", dimension or ""), kind
        return ("", ""), ""
    match = _ANTHROPIC.fullmatch(name)
    if match is not None and not drafts_only:
        return ("anthropic", match.group(1)), match.group(2)
    return ("", ""), ""


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
