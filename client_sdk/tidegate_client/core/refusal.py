"""From a refusal's body to who refused, and why.

Law: total. A body is whatever JSON value arrived, already decoded; a member of the wrong type counts as
absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .clouds import details_wait_s, enclosed_headers, is_daily_quota, sentence_wait_s
from .figures import CEILING_S, decimal

SCOPES = frozenset({"request", "tenant", "class", "model"})
"""What a refusal covers, as Tidegate says it; `tenant` is assumed of servers that do not."""

_TEXT_CHARS = 500
_QUOTA = frozenset({"insufficient_quota", "quota_exhausted", "quota_exceeded", "billing_hard_limit_reached"})


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Who refused and why.

    Attributes:
        reason: Tidegate's `reason`, else the error's code or type; empty when the body said nothing.
        scope: one of `SCOPES`.
        message: the server's words for a human.
        wait_s: the wait the body names, in seconds; used only when no header does.
        in_words: a sentence for people named it. That it tells a time proves no refusal before work.
        enclosed: headers of the answer that the server itself was refused with, or stands in for.
        quota: the allowance is used up, so waiting does not help.
        appointed: the time is this request's own. A server that says what a refusal covers (Tidegate) spreads
            its callers out itself; who comes at another time than told loses its place.
    """

    reason: str = ""
    scope: str = "tenant"
    message: str = ""
    wait_s: float | None = None
    in_words: bool = False
    enclosed: tuple[tuple[str, str], ...] = ()
    quota: bool = False
    appointed: bool = False


NO_REFUSAL = Refusal()


def read_refusal(body: object) -> Refusal:
    """The refusal that a decoded JSON `body` describes, in the dialects of Tidegate, OpenAI, Azure, Google,
    Anthropic and RFC 9457.
    """
    if isinstance(body, list) and len(body) == 1:
        body = body[0]  # Google, where it was asked for a stream
    if not isinstance(body, Mapping):
        return NO_REFUSAL
    error = body.get("error")
    if isinstance(error, str):
        wait_s = sentence_wait_s(error)
        return Refusal(
            _text(body, "error_type"), message=_printable(error), wait_s=wait_s, in_words=wait_s is not None
        )
    members = error if isinstance(error, Mapping) else body
    words = [_text(members, name) for name in ("code", "type", "reason")]
    scope, details = _text(members, "scope"), members.get("details")
    wait_s, in_words = _named_wait(members)
    return Refusal(
        reason=words[2] or words[0] or words[1] or _text(members, "status"),
        scope=scope if scope in SCOPES else "tenant",
        message=_text(members, "message") or _text(members, "detail"),
        wait_s=wait_s,
        in_words=in_words,
        enclosed=enclosed_headers(members.get("metadata")),
        quota=any(word.lower() in _QUOTA for word in words) or is_daily_quota(details),
        appointed=scope in SCOPES,
    )


def _named_wait(members: Mapping[object, object]) -> tuple[float | None, bool]:
    """The seconds that an error names, and whether it takes a sentence to know them."""
    named_s = _seconds(members.get("retry_after_ms"), 1e-3) or _seconds(members.get("retry_after"), 1.0)
    if named_s is not None:
        return named_s, False
    details_s, sentence_s = details_wait_s(members.get("details")), sentence_wait_s(members.get("message"))
    if details_s is None:
        return sentence_s, sentence_s is not None
    # Google cuts the fraction off in the details and says it in the sentence.
    return max(details_s, sentence_s or 0.0), False


def _text(members: Mapping[object, object], name: str) -> str:
    value = members.get(name)
    return _printable(value) if isinstance(value, str) else ""


def _printable(text: str) -> str:
    """The start of a server's `text`, fit for one line of a log or a terminal."""
    return "".join(each if each.isprintable() else " " for each in text[:_TEXT_CHARS])


def _seconds(value: object, unit_s: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    figure = decimal(value if isinstance(value, str) else repr(value))
    return min(figure * unit_s, CEILING_S) if figure else None
