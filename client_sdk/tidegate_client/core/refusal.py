"""From a refusal's body to who refused, and why.

Law: total. A body is whatever JSON value arrived, already decoded; a member of the wrong type counts as
absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .figures import CEILING_S, decimal

SCOPES = frozenset({"request", "tenant", "class", "model"})
"""What a refusal covers, as Tidegate says it; `tenant` is assumed of servers that do not."""

_QUOTA = frozenset({"insufficient_quota", "quota_exhausted", "quota_exceeded", "billing_hard_limit_reached"})


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Who refused and why.

    Attributes:
        reason: Tidegate's `reason`, else the error's code or type; empty when the body said nothing.
        scope: one of `SCOPES`.
        message: the server's words for a human.
        wait_s: the wait the body names, in seconds; used only when no header does.
        quota: the allowance is used up, so waiting does not help.
        appointed: the time is this request's own. A server that says what a refusal covers (Tidegate) spreads
            its callers out itself; who comes at another time than told loses its place.
    """

    reason: str = ""
    scope: str = "tenant"
    message: str = ""
    wait_s: float | None = None
    quota: bool = False
    appointed: bool = False


NO_REFUSAL = Refusal()


def read_refusal(body: object) -> Refusal:
    """The refusal that a decoded JSON `body` describes, in the dialects of Tidegate, OpenAI, Anthropic and
    RFC 9457.
    """
    if not isinstance(body, Mapping):
        return NO_REFUSAL
    error = body.get("error")
    if isinstance(error, str):
        return Refusal(reason=_text(body, "error_type"), message=error)
    members = error if isinstance(error, Mapping) else body
    words = [_text(members, name) for name in ("code", "type", "reason")]
    scope = _text(members, "scope")
    return Refusal(
        reason=_text(members, "reason") or words[0] or words[1],
        scope=scope if scope in SCOPES else "tenant",
        message=_text(members, "message") or _text(members, "detail"),
        wait_s=_seconds(members.get("retry_after")),
        quota=any(word.lower() in _QUOTA for word in words),
        appointed=scope in SCOPES,
    )


def _text(members: Mapping[object, object], name: str) -> str:
    value = members.get(name)
    return value[:500] if isinstance(value, str) else ""


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    figure = decimal(value if isinstance(value, str) else repr(value))
    return min(figure, CEILING_S) if figure else None
