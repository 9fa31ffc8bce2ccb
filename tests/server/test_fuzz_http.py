"""Whatever is sent to a guarded route: never a 500 of ours, never a fault, never a lease left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.bed import App, Bed, bed
from tidegate.asgi.classify import _KNOWN

PATHS = sorted(_KNOWN)
FIELDS = [
    *("model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "max_output_tokens"),
    *("n", "best_of", "stream", "stream_options", "tools", "priority", "prompt_logprobs", "echo"),
    *("logprobs", "background", "service_tier", "session_id", "parameters", "sampling_params", "text"),
    *("reasoning_effort", "thinking", "response_format", "use_beam_search", "truncate_prompt_tokens"),
]
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(allow_nan=True, allow_infinity=True), st.booleans(), st.none()
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8).map(lambda v: json.dumps(v).encode()),
    VALUES.map(lambda v: json.dumps(v).encode()),
    st.binary(max_size=200),
    st.sampled_from(
        [b"{" * 2000, b"[" * 100_000, b'{"prompt": "' + b"\xed\xa0\x80" + b'"}', b"\xef\xbb\xbf{}"]
    ),
)
NAMES = [
    *("prefer", "idempotency-key", "tidegate-attempt", "x-stainless-retry-count", "x-request-id"),
    *("x-stainless-read-timeout", "authorization", "x-api-key", "x-tidegate-priority", "accept"),
    *("accept-language", "x-forwarded-for", "origin", "content-type", "expect", "forwarded"),
]
PIECES = st.sampled_from(
    [
        *(
            "",
            "0",
            "-1",
            "1e9",
            "9" * 400,
            "²",
            "nan",
            "inf",
            '"',
            '"k"',
            "wait=",
            "wait=1",
            "Bearer ",
            "Bearer x",
        ),
        *(
            "vip",
            "system",
            "abc",
            ",",
            ";",
            "q=",
            "zh;q=1.5",
            "*/*",
            "application/problem+json",
            "\x7f",
            "a" * 5000,
        ),
    ]
)
WORDS = st.one_of(PIECES, st.tuples(PIECES, PIECES).map("".join), st.text('\x20\x7e\xff,;="', max_size=30))
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), WORDS), max_size=6)


class Plain(App):
    """Answers at once."""

    async def _answer(self, receive: Any, send: Any) -> None:
        more = True
        while more:
            more = (await receive()).get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def _exchange(b: Bed, path: str, body: bytes, headers: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]
    request = httpx.Request("POST", "http://gate" + path, content=body, headers=raw)
    response = await b.client.send(request)
    assert response.status_code in (200, 400, 413, 429), (response.status_code, response.text)
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    assert b.runtime.faults.count == 0, b.events
    statistics = b.runtime.statistics()
    assert (statistics.running, statistics.queued, statistics.queued_bytes) == (0, 0, 0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PATHS), BODIES, HEADERS), min_size=8, max_size=12))
def test_any_body_any_header_any_guarded_path(
    requests: list[tuple[str, bytes, list[tuple[str, str]]]],
) -> None:
    """L6, L7, Q12: the app's answer, or a refusal that says why."""

    async def run() -> None:
        async with bed(Plain()) as b:
            for path, body, headers in requests:
                await _exchange(b, path, body, headers)

    asyncio.run(run())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.text(st.characters(codec="latin-1", exclude_characters="?#"), max_size=40), min_size=8, max_size=12
    )
)
def test_any_path_at_all(paths: list[str]) -> None:
    """Guarded or not, nothing of ours breaks on a path."""

    async def run() -> None:
        async with bed(Plain(), guard={"guard_unknown_posts": True}) as b:
            for path in paths:
                for prefix in ("/", "/v1/completions", "/v1/"):
                    scope = _scope(prefix + path)
                    status = await _drive(b, scope)
                    assert status == 200
            assert b.runtime.faults.count == 0

    asyncio.run(run())


def _scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode("latin-1"),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [],
        "client": None,
        "server": None,
    }


async def _drive(b: Bed, scope: dict[str, Any]) -> int:
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await b.gate(scope, receive, send)
    return int(statuses[0])


@pytest.mark.parametrize("client", [None, ["127.0.0.1"], ("not an address", 1), ("fe80::1%eth0", 0)])
async def test_odd_peers(client: Any) -> None:
    """L10: Unix sockets and zones have addresses of their own kind."""
    async with bed(Plain()) as b:
        assert await _drive(b, {**_scope("/v1/completions"), "client": client}) == 200
        assert b.runtime.faults.count == 0
