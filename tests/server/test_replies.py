"""Answers that are ours: status, reason, dialect and language (cases R1, R4, Q15)."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.cors import CorsOptions
from tidegate.asgi.messages import message
from tidegate.asgi.replies import (
    Replier,
    Reply,
    ReplyOptions,
    build_problem,
    build_reply,
    misconfigured,
    refusal_status,
    send_reply,
)
from tidegate.asgi.reply_bodies import Form, _worded, refusal_body
from tidegate.core.decisions import Reason, Refuse

CHAT = Route(Dialect.OPENAI_CHAT, True, "/chat/completions")
MESSAGES = Route(Dialect.ANTHROPIC_MESSAGES, True, "/v1/messages")
STATUS = {
    Reason.RATE_LIMITED: 429,
    Reason.TOKEN_RATE_LIMITED: 429,
    Reason.QUEUE_FULL: 429,
    Reason.TENANT_QUEUE_FULL: 429,
    Reason.WAIT_EXPIRED: 429,
    Reason.WAIT_TOO_LONG: 429,
    Reason.DISPLACED: 429,
    Reason.TOO_EARLY: 429,
    Reason.SUPERSEDED: 409,
    Reason.KV_BLIND: 429,
    Reason.ASLEEP: 503,
    Reason.PROMPT_TOO_LARGE: 413,
    Reason.COST_ABOVE_BURST: 400,
    Reason.DRAINING: 503,
    Reason.GATE_FAULT: 503,
    Reason.KEYS_UNAVAILABLE: 503,
}


def scope(**headers: str) -> dict[str, Any]:
    lines = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": lines}


def refuse(reason: Reason = Reason.QUEUE_FULL, wait_s: float | None = 2.3705, **more: Any) -> Refuse:
    return Refuse(ticket=1, reason=reason, scope="model", retry_after_s=wait_s, **more)


def reply(request: dict[str, Any], refused: Refuse, route: Route | None = CHAT, **options: Any) -> Reply:
    return build_reply(refused, request, route, ReplyOptions(**options), 1_795_954_896.0)


def header(answer: Reply, name: bytes) -> str | None:
    return next((value.decode() for key, value in answer.headers if key == name), None)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_status(reason: Reason) -> None:
    """429 is contention, 503 is nobody there, 4xx is for good."""
    assert reply(scope(), refuse(reason)).status == STATUS[reason]


def test_saturation_status_moves_only_saturation() -> None:
    """Quota stays 429 when saturation is configured to be 503."""
    moved = {reason for reason in Reason if refusal_status(reason, 503) != refusal_status(reason, 429)}
    assert moved == {
        Reason.QUEUE_FULL,
        Reason.WAIT_EXPIRED,
        Reason.WAIT_TOO_LONG,
        Reason.DISPLACED,
        Reason.KV_BLIND,
    }


@pytest.mark.parametrize("reason", Reason)
def test_openai_body(reason: Reason) -> None:
    """The shape of an OpenAI error with a reason, a scope and the wait repeated for browsers (case R7)."""
    answer = reply(scope(), refuse(reason))
    error = json.loads(answer.body)["error"]
    assert header(answer, b"content-type") == "application/json"
    assert header(answer, b"content-length") == str(len(answer.body))
    assert (error["reason"], error["scope"], error["param"]) == (reason.value, "model", None)
    waits = header(answer, b"retry-after")
    assert error.get("retry_after") == (None if waits is None else int(waits))
    if answer.status == 429:
        assert (error["code"], error["type"]) == ("RATE_LIMIT_EXCEEDED", "server_busy")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.QUEUE_FULL, "rate_limit_error"),
        (Reason.DRAINING, "overloaded_error"),
        (Reason.PROMPT_TOO_LARGE, "request_too_large"),
        (Reason.COST_ABOVE_BURST, "invalid_request_error"),
    ],
)
def test_anthropic_body(reason: Reason, kind: str) -> None:
    """On /v1/messages the error is Anthropic's, with our members beside theirs."""
    body = json.loads(reply(scope(), refuse(reason), MESSAGES).body)
    assert (body["type"], body["error"]["type"], body["error"]["reason"]) == ("error", kind, reason.value)


@pytest.mark.parametrize(
    ("accept", "problem"),
    [
        ("application/problem+json", True),
        ("application/problem+json, application/json;q=0.5", True),
        ("Application/Problem+JSON;Q=0.7, */*;q=0.1", True),
        ("application/json, application/problem+json;q=0.5", False),
        ("application/problem+json;q=0, */*", False),
        ("application/problem+json;q=bad", False),
        ("*/*", False),
        ("text/event-stream", False),
    ],
)
def test_problem_json_when_preferred(accept: str, problem: bool) -> None:
    """RFC 9457 where `Accept` prefers it, with the OpenAI member still inside."""
    answer = reply(scope(accept=accept), refuse())
    assert header(answer, b"content-type") == ("application/problem+json" if problem else "application/json")
    body = json.loads(answer.body)
    assert body["error"]["reason"] == "queue_full"
    if problem:
        assert body["status"] == answer.status
        assert body["type"].endswith("#quota-exceeded")
        assert body["violated-policies"] == ["queue"]


def test_problem_json_of_503() -> None:
    """A server that cannot serve names reduced capacity."""
    body = json.loads(reply(scope(accept="application/problem+json"), refuse(Reason.DRAINING)).body)
    assert body["type"].endswith("#temporary-reduced-capacity")


@pytest.mark.parametrize(
    ("accept", "language"),
    [
        ("", "en"),
        ("zh", "zh"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("en;q=0.5, zh-Hant;q=0.6", "zh"),
        ("zh;q=0", "en"),
        ("zh, en", "zh"),
        ("en, zh", "en"),
        ("fr, zh;q=0.1", "zh"),
        ("de", "en"),
        ("zh;q=nan", "en"),
        ("zhuang", "en"),
    ],
)
def test_language_by_weight(accept: str, language: str) -> None:
    """English unless Chinese is ranked above it; the header says which."""
    answer = reply(scope(accept_language=accept), refuse())
    assert header(answer, b"content-language") == language
    text = json.loads(answer.body)["error"]["message"]
    assert text.isascii() is (language == "en")
    assert "3" in text


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("chinese", [True, False])
def test_every_reason_has_words_in_both_languages(reason: Reason, chinese: bool) -> None:
    """The wait is named only where there is one; details are added."""
    assert "7" in message(refuse(reason, detail=""), 7, chinese)
    text = message(refuse(reason, None, detail="cost 10 > burst 9"), None, chinese)
    assert text.endswith("cost 10 > burst 9")
    assert "{" not in text


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("milliseconds", [1, 2371, 55_000, None])
def test_a_kept_wording_is_the_wording(reason: Reason, milliseconds: int | None) -> None:
    """Templates give byte for byte what putting it into words anew would give."""
    status = refusal_status(reason, 429)
    flags = (False, True)
    for form in (Form(status, a, not a and p, c) for a in flags for p in flags for c in flags):
        for _ in range(2):
            assert refusal_body(form, refuse(reason), milliseconds) == _worded(
                form, refuse(reason), milliseconds
            )


def test_a_preferred_wait_is_said_to_be_applied() -> None:
    """RFC 7240; nothing is said where none was asked for."""
    assert header(reply(scope(prefer="wait=20"), refuse()), b"preference-applied") == "wait=20"
    assert header(reply(scope(), refuse()), b"preference-applied") is None


def test_replies_vary_by_what_they_depend_on() -> None:
    """Caches between us and the caller must not mix dialects or languages."""
    assert header(reply(scope(), refuse()), b"vary") == "Accept, Accept-Language"
    assert header(reply(scope(), refuse()), b"cache-control") == "no-store"


@pytest.mark.parametrize(
    ("given_id", "echoed"), [("abc-123", True), ("a b", False), ("x" * 200, False), ("é", False), ("", False)]
)
def test_request_id_is_echoed_or_made(given_id: str, echoed: bool) -> None:
    """A plain id comes back; anything odd is replaced, never reflected."""
    got = header(reply(scope(x_request_id=given_id), refuse()), b"x-request-id")
    assert got is not None
    assert (got == given_id) is echoed
    assert echoed or len(got) == 32


async def sent(answer: Reply, request: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []

    async def send(each: Any) -> None:
        messages.append(each)

    await send_reply(answer, request, send)
    return messages


async def test_http_reply_is_one_start_and_one_body() -> None:
    """With a list of headers, which other middleware wants to append to."""
    answer = reply(scope(), refuse())
    start, body = await sent(answer, scope())
    assert (start["type"], start["status"]) == ("http.response.start", 429)
    assert isinstance(start["headers"], list)
    assert body == {"type": "http.response.body", "body": answer.body}


async def test_head_has_no_body_but_its_length() -> None:
    """HEAD is told what a GET would have got."""
    answer = reply(scope(), refuse())
    start, body = await sent(answer, {**scope(), "method": "HEAD"})
    assert body["body"] == b""
    assert dict(start["headers"])[b"content-length"] == str(len(answer.body)).encode()


async def test_websocket_is_denied_with_the_reply_where_the_server_can() -> None:
    """With the denial extension the caller sees the 429, without it a close code."""
    answer = reply(scope(), refuse())
    request = {"type": "websocket", "headers": [], "extensions": {"websocket.http.response": {}}}
    start, body = await sent(answer, request)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert (body["type"], body["body"]) == ("websocket.http.response.body", answer.body)
    none: list[dict[str, Any] | None] = [{}, None]
    for extensions in none:
        [close] = await sent(answer, {"type": "websocket", "headers": [], "extensions": extensions})
        assert (close["type"], close["code"]) == ("websocket.close", 1013)


@pytest.mark.parametrize(
    ("status", "reason", "retry"),
    [
        (400, "invalid_request", "false"),
        (401, "invalid_api_key", "false"),
        (408, "body_timeout", None),
        (413, "invalid_request", "false"),
    ],
)
def test_bad_requests_name_the_field_and_are_not_retried(status: int, reason: str, retry: str | None) -> None:
    """What is wrong with the request itself stays wrong; only a late body may be sent again."""
    replier = Replier(ReplyOptions(), CorsOptions(), lambda: 0.0)
    answer = replier.bad_request(status, "'n' is 99; at most 16 is allowed here.", scope(), CHAT, "n")
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["reason"]) == (status, "n", reason)
    assert header(answer, b"x-should-retry") == retry
    assert header(answer, b"retry-after") is None
    assert (header(answer, b"www-authenticate") == "Bearer") is (status == 401)


async def test_misconfiguration_is_a_503_that_names_the_setting() -> None:
    """Where no lifespan can tell it (law 12)."""
    messages: list[Any] = []

    async def send(each: Any) -> None:
        messages.append(each)

    await misconfigured("kv.high_watermark", scope(), CHAT, send)
    assert messages[0]["status"] == 503
    error = json.loads(messages[1]["body"])["error"]
    assert error["reason"] == "misconfigured"
    assert "see kv.high_watermark." in error["message"]


def test_replier_adds_cors_and_its_clock() -> None:
    """Refusals carry the origin's permission and an epoch from the injected clock."""
    replier = Replier(ReplyOptions(), CorsOptions(allow_origins=("https://a.example",)), lambda: 1000.0)
    answer = replier.refusal(refuse(limit=5.0), scope(origin="https://a.example"), CHAT)
    assert header(answer, b"access-control-allow-origin") == "https://a.example"
    assert header(answer, b"x-ratelimit-reset") == "1003"


@given(
    st.sampled_from(list(Reason)),
    st.lists(
        st.tuples(
            st.sampled_from([b"accept", b"accept-language", b"x-request-id", b"origin"]),
            st.binary(max_size=60),
        ),
        max_size=6,
    ),
    st.sampled_from([CHAT, MESSAGES, None]),
)
@settings(deadline=None)
def test_no_request_headers_can_break_a_refusal(
    reason: Reason, lines: list[tuple[bytes, bytes]], route: Route | None
) -> None:
    """Whatever the caller prefers, it gets one well-formed JSON answer without CR or LF in a header."""
    replier = Replier(ReplyOptions(send_policy=True), CorsOptions(allow_origin_regex=".*"), lambda: 1e9)
    answer = replier.refusal(refuse(reason), {**scope(), "headers": lines}, route)
    assert json.loads(answer.body)["error"]["reason"] == reason.value
    assert not any(b"\n" in value or b"\r" in value for _, value in answer.headers)


def _over_http(answer: Reply) -> httpx2.MockTransport:
    def handle(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(answer.status, headers=answer.headers, content=answer.body)

    return httpx2.MockTransport(handle)


def test_the_openai_sdk_reads_the_error() -> None:
    """The real SDK raises its rate limit error with our code and message."""
    answer = reply(scope(accept="application/problem+json"), refuse())
    client = openai.OpenAI(
        api_key="k",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=_over_http(answer)),
    )
    with client, pytest.raises(openai.RateLimitError, match="queue is full") as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert (caught.value.code, caught.value.type) == ("RATE_LIMIT_EXCEEDED", "server_busy")
    assert caught.value.response.headers["retry-after"] == "3"


def test_the_anthropic_sdk_reads_the_error() -> None:
    """The real SDK raises its rate limit error on /v1/messages."""
    answer = reply(scope(), refuse(), MESSAGES)
    client = anthropic.Anthropic(
        api_key="k",
        base_url="http://test",
        max_retries=0,
        http_client=httpx2.Client(transport=_over_http(answer)),
    )
    with client, pytest.raises(anthropic.RateLimitError, match="rate_limit_error"):
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])


def test_problem_of_a_plain_kind_is_about_blank() -> None:
    """Only refusals have registered problem types."""
    request = scope(accept="application/problem+json")
    body = json.loads(build_problem(400, "no", request, None, reason="invalid_request").body)
    assert (body["type"], body["status"]) == ("about:blank", 400)
