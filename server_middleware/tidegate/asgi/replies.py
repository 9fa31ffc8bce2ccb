"""Every answer that is ours and not the app's, in the dialect and the language the caller expects.

Law of this file: one machine-readable reason each; status, headers and body say the same; permanent
refusals carry no `Retry-After`; nothing here tells a caller anything about other callers or keys.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from random import getrandbits
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.cors import Cors, CorsOptions
from tidegate.asgi.headers import headers_of, preference_applied, reason_header, retry_after_ms
from tidegate.asgi.negotiate import PROBLEM_JSON, prefers_chinese, prefers_problem_json
from tidegate.asgi.reply_bodies import Form, problem_body, refusal_body
from tidegate.asgi.types import HeaderList, Headers, Scope, Send, pick
from tidegate.core.decisions import Reason, Refuse
from tidegate.option_types import FromText

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
    Reason.KEYS_UNAVAILABLE: 503,
}
_ANTHROPIC = Dialect.ANTHROPIC_MESSAGES
_Wishes = dict[bytes, str]
_WISHES = frozenset({b"accept", b"accept-language", b"x-request-id", b"prefer"})
_JSON_TYPE = (b"content-type", b"application/json")
_PROBLEM_TYPE = (b"content-type", PROBLEM_JSON.encode("ascii"))
_VARY = (b"vary", b"Accept, Accept-Language")
_ENGLISH, _CHINESE = (b"content-language", b"en"), (b"content-language", b"zh")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ReplyOptions(BaseModel):
    """How refusals look."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_retry_after_s: float = Field(default=55.0, ge=1)
    """Bound of the waits told because of load (not of quota): older SDKs ignore more than 60 s."""
    saturation_status: Annotated[Literal[429, 503], FromText] = 429
    """Status when the server, not the caller's own quota, is the cause."""
    expose_limits: bool = True
    """Send `X-RateLimit-*`; it tells callers how large the bounds are."""
    send_policy: bool = False
    """Also send `RateLimit-Policy`; needs `expose_limits`."""
    server_timing: bool = True
    """Tell admitted callers in `Server-Timing` how long they were queued."""
    quota_on_admitted: bool = False
    """Tell admitted callers in `RateLimit` what is left of their tenant's quota, where it has one."""


class Reply(NamedTuple):
    """A complete answer; `request_id` is among its headers too."""

    status: int
    headers: HeaderList
    body: bytes
    request_id: str


def refusal_status(reason: Reason, saturation_status: int) -> int:
    """The HTTP status of a refusal."""
    return _FIXED_STATUS.get(reason) or (saturation_status if reason in _SATURATION else 429)


def problem_reason(status: int) -> str:
    """The reason code of an answer that is ours but no decision of the gate."""
    return {401: "invalid_api_key", 408: "body_timeout"}.get(status, "invalid_request")


def build_reply(
    refuse: Refuse,
    scope: Scope,
    route: Route | None,
    options: ReplyOptions,
    wall_now_s: float,
    cors: HeaderList | None = None,
) -> Reply:
    """The answer to a refused request."""
    given: Headers = scope.get("headers", ())
    wishes = pick(given, _WISHES)
    form = _form(refusal_status(refuse.reason, options.saturation_status), wishes, route, is_refusal=True)
    milliseconds = retry_after_ms(refuse)
    body = refusal_body(form, refuse, milliseconds)
    request_id = _request_id(wishes)
    lines = [
        _PROBLEM_TYPE if form.is_problem else _JSON_TYPE,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("ascii")),
        *headers_of(refuse, milliseconds, wall_now_s, options.expose_limits, options.send_policy),
        _CHINESE if form.is_chinese else _ENGLISH,
        _VARY,
    ]
    if b"prefer" in wishes:
        lines += preference_applied(given)
    return Reply(form.status, lines + cors if cors else lines, body, request_id)


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
    form = _form(status, wishes, route, is_refusal=False)
    body = problem_body(form, text, reason, param)
    request_id = _request_id(wishes)
    lines = [
        _PROBLEM_TYPE if form.is_problem else _JSON_TYPE,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"vary", b"Accept"),
        reason_header(reason),
    ]
    if status == HTTPStatus.UNAUTHORIZED:
        lines.append((b"www-authenticate", b"Bearer"))
    if status < 500 and status != HTTPStatus.REQUEST_TIMEOUT:
        lines.append((b"x-should-retry", b"false"))
    return Reply(status, lines + (cors or []), body, request_id)


def _form(status: int, wishes: _Wishes, route: Route | None, *, is_refusal: bool) -> Form:
    is_anthropic = route is not None and route.dialect is _ANTHROPIC
    if not wishes:
        return Form(status, is_anthropic)
    return Form(
        status,
        is_anthropic,
        not is_anthropic and b"accept" in wishes and prefers_problem_json(wishes[b"accept"]),
        is_refusal and b"accept-language" in wishes and prefers_chinese(wishes[b"accept-language"]),
    )


def _request_id(wishes: _Wishes) -> str:
    """The caller's where it is short and plain, else a new one."""
    given = wishes.get(b"x-request-id")
    return f"{getrandbits(128):032x}" if given is None or not _REQUEST_ID.fullmatch(given) else given


async def send_reply(reply: Reply, scope: Scope, send: Send) -> None:
    """Sends it; the request's body need not have been read. A WebSocket is denied before acceptance."""
    start, end = "http.response.start", "http.response.body"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1013, "reason": "try again later"})
            return
        start, end = "websocket.http.response.start", "websocket.http.response.body"
    body = b"" if scope.get("method") == "HEAD" else reply.body
    await send({"type": start, "status": reply.status, "headers": list(reply.headers)})
    await send({"type": end, "body": body})


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
        return build_problem(
            status, text, scope, route, reason=problem_reason(status), param=param, cors=cors
        )

    def send(self, reply: Reply, scope: Scope, send: Send) -> Awaitable[None]:
        """Sends it."""
        return send_reply(reply, scope, send)


async def misconfigured(setting: str, scope: Scope, route: Route | None, send: Send) -> None:
    """503 that names the setting: there is no lifespan to tell, and a server must not answer 500 to all.

    Its value is not for strangers.
    """
    text = (
        f"Tidegate is misconfigured and admits nothing here: see {setting}. What is wrong with it stands in "
        "the server's log."
    )
    await send_reply(build_problem(503, text, scope, route, reason="misconfigured"), scope, send)
