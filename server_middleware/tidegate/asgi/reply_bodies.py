"""The JSON bodies of our own answers: OpenAI's, Anthropic's and RFC 9457's form, in two languages.

Law of this file: a refusal's body is the same for all callers but for its figures. So each form is put
into words once and kept as a template, since refusing must stay cheaper than serving.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from tidegate.asgi.headers import bound_name
from tidegate.asgi.messages import message
from tidegate.core.decisions import Reason, Refuse
from tidegate.core.decisions import Scope as RefusedScope

_KINDS: dict[int, tuple[str, str, str]] = {  # status: code, type for OpenAI, type for Anthropic
    400: ("INVALID_REQUEST", "invalid_request_error", "invalid_request_error"),
    401: ("INVALID_API_KEY", "authentication_error", "authentication_error"),
    408: ("REQUEST_TIMEOUT", "timeout_error", "timeout_error"),
    409: ("SUPERSEDED", "conflict_error", "conflict_error"),
    413: ("REQUEST_TOO_LARGE", "invalid_request_error", "request_too_large"),
    429: ("RATE_LIMIT_EXCEEDED", "server_busy", "rate_limit_error"),
    503: ("SERVER_UNAVAILABLE", "server_busy", "overloaded_error"),
}
_PROBLEMS = "https://iana.org/assignments/http-problem-types#"
_SECONDS, _MILLISECONDS = "{retry seconds}", "{retry milliseconds}"  # stand in for the figures
_encode = msgspec.json.Encoder().encode


class Form(NamedTuple):
    """What the wording of an answer depends on, besides its figures."""

    status: int
    is_anthropic: bool = False
    is_problem: bool = False
    is_chinese: bool = False


def refusal_body(form: Form, refuse: Refuse, milliseconds: int | None) -> bytes:
    """The body of a refusal; `milliseconds` to wait, `None`: no waiting helps."""
    if refuse.detail:  # figures of this one request: not worth keeping
        return _worded(form, refuse, milliseconds)
    template = _template(form, refuse.reason, refuse.scope, milliseconds is not None)
    if milliseconds is None:
        return template % ()
    return template % {b"seconds": -(-milliseconds // 1000), b"milliseconds": milliseconds}


def problem_body(form: Form, text: str, reason: str, param: str | None) -> bytes:
    """The body of an answer that is no refusal of admission."""
    return _encode(_members(form, text, {"reason": reason, "scope": "request"}, param))


@lru_cache(maxsize=1024)
def _template(form: Form, reason: Reason, scope: RefusedScope, may_return: bool) -> bytes:
    """A body with `%` places for the figures."""
    refuse = Refuse(ticket=0, reason=reason, scope=scope, retry_after_s=1.0 if may_return else None)
    error: dict[str, Any] = {"reason": reason.value, "scope": scope}
    if may_return:
        error["retry_after"] = msgspec.Raw(_SECONDS.encode("ascii"))
        error["retry_after_ms"] = msgspec.Raw(_MILLISECONDS.encode("ascii"))
    text = message(refuse, _SECONDS if may_return else None, form.is_chinese)
    body = _encode(_members(form, text, error, None)).replace(b"%", b"%%")
    body = body.replace(_MILLISECONDS.encode("ascii"), b"%(milliseconds)d")
    return body.replace(_SECONDS.encode("ascii"), b"%(seconds)d")


def _worded(form: Form, refuse: Refuse, milliseconds: int | None) -> bytes:
    seconds = None if milliseconds is None else -(-milliseconds // 1000)
    error: dict[str, Any] = {"reason": refuse.reason.value, "scope": refuse.scope}
    if seconds is not None:
        error |= {"retry_after": seconds, "retry_after_ms": milliseconds}
    return _encode(_members(form, message(refuse, seconds, form.is_chinese), error, None))


def _members(form: Form, text: str, error: dict[str, Any], param: str | None) -> dict[str, Any]:
    code, openai_type, anthropic_type = _KINDS[form.status]
    if form.is_anthropic:
        return {"type": "error", "error": {"type": anthropic_type, "message": text, "code": code, **error}}
    body = {"error": {"code": code, "type": openai_type, "message": text, "param": param, **error}}
    return _problem(form.status, text, error) | body if form.is_problem else body


def _problem(status: int, text: str, error: dict[str, Any]) -> dict[str, Any]:
    """RFC 9457; the OpenAI member stays beside it, which the standard allows and SDKs read."""
    title = HTTPStatus(status).phrase
    problem: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "detail": text}
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        problem["type"] = _PROBLEMS + "quota-exceeded"
        problem["violated-policies"] = [bound_name(Reason(error["reason"]))]
    elif status == HTTPStatus.SERVICE_UNAVAILABLE and "retry_after" in error:
        problem["type"] = _PROBLEMS + "temporary-reduced-capacity"
    return problem | error
