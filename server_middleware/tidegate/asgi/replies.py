"""Every answer that is ours and not the app's, in the dialect and the language the caller expects.

Law of this file: one machine-readable reason each; status, headers and body say the same; permanent
refusals carry no `Retry-After`; nothing here tells a caller anything about other callers or keys.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.cors import Cors, CorsOptions
from tidegate.asgi.headers import (
    bound_name,
    preference_applied,
    refusal_headers,
    retry_after_ms,
    retry_after_seconds,
)
from tidegate.asgi.messages import message
from tidegate.asgi.negotiate import PROBLEM_JSON, prefers_chinese, prefers_problem_json
from tidegate.asgi.types import HeaderList, Headers, Scope, Send, pick
from tidegate.core.decisions import Reason, Refuse

_SATURATION = frozenset(
    {Reason.QUEUE_FULL, Reason.WAIT_EXPIRED, Reason.WAIT_TOO_LONG, Reason.DISPLACED, Reason.KV_BLIND}
)
_FIXED_STATUS: dict[Reason, int] = {
    Reason.PROMPT_TOO_LARGE: 413,
    Reason.COST_ABOVE_BURST: 400,
    Reason.SUPERSEDED: 409,
    Reason.DRAINING: 503,
    Reason.ASLEEP: 503,
    Reason.GATE_FAULT: 503,
}
_KINDS: dict[int, tuple[str, str, str]] = {  # status: code, type for OpenAI, type for Anthropic
    400: ("INVALID_REQUEST", "invalid_request_error", "invalid_request_error"),
    401: ("INVALID_API_KEY", "authentication_error", "authentication_error"),
    408: ("REQUEST_TIMEOUT", "timeout_error", "timeout_error"),
    409: ("SUPERSEDED", "conflict_error", "conflict_error"),
    413: ("REQUEST_TOO_LARGE", "invalid_request_error", "request_too_large"),
    429: ("RATE_LIMIT_EXCEEDED", "server_busy", "rate_limit_error"),
    503: ("SERVER_UNAVAILABLE", "server_busy", "overloaded_error"),
}
_Wishes = dict[bytes, str]
_WISHES = frozenset({b"accept", b"accept-language", b"x-request-id"})
_PROBLEMS = "https://iana.org/assignments/http-problem-types#"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_encode = msgspec.json.Encoder().encode


class ReplyOptions(BaseModel):
    """How refusals look."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_retry_after_s: float = Field(default=55.0, ge=1)
    """Bound of the waits told because of load (not of quota): older SDKs ignore more than 60 s."""
    saturation_status: Literal[429, 503] = 429
    """Status when the server, not the caller's own quota, is the cause."""
    expose_limits: bool = True
    """Send `X-RateLimit-*`; it tells callers how large the bounds are."""
    send_policy: bool = False
    """Also send `RateLimit-Policy`; needs `expose_limits`."""
    server_timing: bool = True
    """Tell admitted callers in `Server-Timing` how long they were queued."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer."""

    status: int
    headers: HeaderList
    body: bytes


def refusal_status(reason: Reason, saturation_status: int) -> int:
    """The HTTP status of a refusal."""
    return _FIXED_STATUS.get(reason) or (saturation_status if reason in _SATURATION else 429)


def build_reply(
    refuse: Refuse,
    scope: Scope,
    route: Route | None,
    options: ReplyOptions,
    wall_now_s: float,
    cors: HeaderList | None = None,
) -> Reply:
    """The answer to a refused request."""
    status = refusal_status(refuse.reason, options.saturation_status)
    given: Headers = scope.get("headers", ())
    wishes = pick(given, _WISHES)
    seconds, chinese = retry_after_seconds(refuse), prefers_chinese(wishes.get(b"accept-language", ""))
    error: dict[str, Any] = {"reason": refuse.reason.value, "scope": refuse.scope}
    if seconds is not None:
        error |= {"retry_after": seconds, "retry_after_ms": retry_after_ms(refuse)}
    body, content_type = _body(status, message(refuse, seconds, chinese), error, None, wishes, route)
    lines = refusal_headers(
        refuse, wall_now_s=wall_now_s, expose_limits=options.expose_limits, send_policy=options.send_policy
    )
    lines += preference_applied(given)
    lines += [(b"content-language", b"zh" if chinese else b"en"), (b"vary", b"Accept, Accept-Language")]
    return _reply(status, content_type, body, lines + (cors or []), wishes)


def build_problem(
    status: int,
    text: str,
    scope: Scope,
    route: Route | None,
    *,
    reason: str,
    param: str | None = None,
    cors: HeaderList | None = None,
) -> Reply:
    """An answer that is no refusal of admission: a bad field, a late body, a missing key, bad settings."""
    wishes = pick(scope.get("headers", ()), _WISHES)
    error = {"reason": reason, "scope": "request"}
    body, content_type = _body(status, text, error, param, wishes, route)
    lines: HeaderList = [(b"cache-control", b"no-store"), (b"vary", b"Accept")]
    if status == HTTPStatus.UNAUTHORIZED:
        lines.append((b"www-authenticate", b"Bearer"))
    if status < 500 and status != HTTPStatus.REQUEST_TIMEOUT:
        lines.append((b"x-should-retry", b"false"))
    return _reply(status, content_type, body, lines + (cors or []), wishes)


def _body(
    status: int, text: str, error: dict[str, Any], param: str | None, wishes: _Wishes, route: Route | None
) -> tuple[dict[str, Any], str]:
    code, openai_type, anthropic_type = _KINDS[status]
    if route is not None and route.dialect is Dialect.ANTHROPIC_MESSAGES:
        body = {"type": "error", "error": {"type": anthropic_type, "message": text, "code": code, **error}}
        return body, "application/json"
    body = {"error": {"code": code, "type": openai_type, "message": text, "param": param, **error}}
    if prefers_problem_json(wishes.get(b"accept", "")):
        return _problem(status, text, error) | body, PROBLEM_JSON
    return body, "application/json"


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


def _reply(status: int, content_type: str, body: dict[str, Any], lines: HeaderList, wishes: _Wishes) -> Reply:
    given = wishes.get(b"x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    encoded = _encode(body)
    headers = [
        (b"content-type", content_type.encode("ascii")),
        (b"content-length", b"%d" % len(encoded)),
        (b"x-request-id", request_id.encode("ascii")),
        *lines,
    ]
    return Reply(status, headers, encoded)


async def send_reply(reply: Reply, scope: Scope, send: Send) -> None:
    """Sends it; the request's body need not have been read. A WebSocket is denied before acceptance."""
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1013, "reason": "try again later"})
            return
        kind = "websocket.http.response"
    body = b"" if scope.get("method") == "HEAD" else reply.body
    await send({"type": f"{kind}.start", "status": reply.status, "headers": list(reply.headers)})
    await send({"type": f"{kind}.body", "body": body})


class Replier:
    """The replies of one middleware."""

    def __init__(self, options: ReplyOptions, cors: CorsOptions, wall_clock: Callable[[], float]) -> None:
        self._options = options
        self._cors = Cors(cors)
        self._wall_clock = wall_clock

    def refusal(self, refuse: Refuse, scope: Scope, route: Route | None) -> Reply:
        """The answer to a refused request."""
        cors = self._cors.refusal_headers(scope.get("headers", ()))
        return build_reply(refuse, scope, route, self._options, self._wall_clock(), cors)

    def bad_request(
        self, status: int, text: str, scope: Scope, route: Route | None, param: str | None = None
    ) -> Reply:
        """The answer to a request that is wrong by itself: 400, 401, 408 or 413."""
        cors = self._cors.refusal_headers(scope.get("headers", ()))
        reason = {401: "invalid_api_key", 408: "body_timeout"}.get(status, "invalid_request")
        return build_problem(status, text, scope, route, reason=reason, param=param, cors=cors)

    async def send(self, reply: Reply, scope: Scope, send: Send) -> None:
        """Sends it."""
        await send_reply(reply, scope, send)


async def misconfigured(error: str, scope: Scope, route: Route | None, send: Send) -> None:
    """503 that names the setting: there is no lifespan to tell, and a server must not answer 500 to all."""
    text = f"Tidegate is misconfigured and admits nothing here: {error}"
    await send_reply(build_problem(503, text, scope, route, reason="misconfigured"), scope, send)
