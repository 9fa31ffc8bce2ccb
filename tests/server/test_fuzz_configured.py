"""Anything at all against a gate with every option in use: one answer each, no fault, no rest."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.bed import App, Bed, Level, bed
from tidegate.telemetry.events import EventKind

CONFIGURED: dict[str, Any] = {
    "tenants": [
        {"name": "t", "keys": ["t"], "requests_per_s": 5, "tokens_per_s": 50, "max_concurrency": 1},
        {"name": "bulk", "keys": ["bulk"], "priority_class": "batch", "max_queued": 1, "weight": 0.5},
        {"name": "unproven", "requests_per_s": 100},
    ],
    "classes": [
        {"name": "standard", "max_wait_s": 0.03, "starvation_s": 0.01, "max_queued": 2},
        {"name": "batch", "max_wait_s": 0.02, "kv_ceiling": 0.5},
    ],
    "queue": {"max_requests": 3, "max_bytes": 2_000},
    "identity": {
        "trusted_proxies": ["127.0.0.1"],
        "tenant_header": "X-Tenant",
        "end_user_header": "X-User",
        "max_credentials": 3,
    },
    "guard": {"guard_unknown_posts": True, "extra_guarded": ["/predict"], "exempt": ["/free"]},
    "fields": {"on_excess_parallel": "clamp", "max_parallel": 2, "beam_search": "reject"},
    "body": {"max_bytes": 300, "timeout_s": 0.2},
    "reply": {"saturation_status": 503, "send_policy": True},
    "keepalive": {"after_s": 0.005, "interval_s": 0.005},
    "cors": {"allow_origin_regex": ".*", "allow_credentials": True},
    "max_tenants": 4,
}
NAMES = (
    *(b"authorization", b"x-api-key", b"x-tenant", b"x-user", b"X-User", b"x-tidegate-priority", b"prefer"),
    *(b"idempotency-key", b"tidegate-attempt", b"content-length", b"x-forwarded-for", b"origin", b"accept"),
    *(b"x-stainless-read-timeout", b"accept-language", b"content-type", b"transfer-encoding"),
)
WORDS = (b"Bearer t", b"Bearer bulk", b"bulk", b"unproven", b"batch", b"wait=0", b'"k"', b"2", b"0", b"\xff")
BODIES = (
    b'{"prompt": "x", "max_tokens": 3}',
    b'{"prompt": "x", "stream": true, "max_tokens": 2, "n": 9}',
    b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "priority": -1}',
    b'{"prompt": [1, 2, 3], "use_beam_search": true}',
    b'{"input": "x", "background": true}',
)
header = st.tuples(st.sampled_from(NAMES), st.sampled_from(WORDS) | st.binary(max_size=12))
pieces = st.lists(st.sampled_from(BODIES) | st.binary(max_size=200), min_size=1, max_size=3)
paths = st.sampled_from(
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/x", "/predict", "/free"]
)
request = st.fixed_dictionaries(
    {"path": paths, "headers": st.lists(header, max_size=6), "pieces": pieces, "leaves": st.booleans()}
)


class Answering(App):
    """Answers at once, whatever has come."""

    async def _answer(self, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def drive(b: Bed, path: str, headers: list[Any], pieces: list[bytes], leaves: bool) -> None:
    """One request, its body in pieces; a caller that leaves does so after the first."""
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    sent: list[Any] = []
    for number, piece in enumerate(pieces):
        incoming.put_nowait(
            {"type": "http.request", "body": piece, "more_body": number < len(pieces) - 1 or leaves}
        )
    if leaves:
        incoming.put_nowait({"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "query_string": b"",
    }
    await asyncio.wait_for(b.gate(scope, incoming.get, send), 60)
    starts = [message["status"] for message in sent if message["type"] == "http.response.start"]
    assert len(starts) == 1 or (leaves and not starts)
    assert set(starts) <= {200, 400, 408, 409, 413, 429, 503}
    assert not starts or not sent[-1].get("more_body", False), "an answer that never ends"


@given(st.lists(request, min_size=1, max_size=7), st.sampled_from([0.0, 0.99]))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_option_in_use_and_anything_at_all(batch: list[dict[str, Any]], level: float) -> None:
    """No 500 of ours, no fault, one whole answer each, and nothing held afterwards."""

    async def run() -> None:
        async with bed(Answering(), Level(level), **CONFIGURED) as b:
            await asyncio.gather(*(drive(b, **each) for each in batch))
            faults = [event for event in b.events if event.kind is EventKind.FAULT]
            assert faults == []
            left = b.runtime.statistics()
            assert (left.queued, left.running, left.queued_bytes) == (0, len(b.runtime.background), 0)

    asyncio.run(run())
