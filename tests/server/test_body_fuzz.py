"""Anything at all against the guarded routes: no 500 of ours, no fault, nothing left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.bed import Level, bed
from tidegate.telemetry.events import EventKind

PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/audio/transcriptions",
    "/inference/v1/generate",
    "/generate",
    "/generate_stream",
    "/invocations",
    "/api/chat",
)
FIELDS = (
    *("prompt", "messages", "input", "system", "tools", "n", "best_of", "max_tokens", "stream", "model"),
    *("sampling_params", "parameters", "options", "text", "input_ids", "priority", "echo", "logprobs"),
    *("prompt_logprobs", "background", "service_tier", "session_id", "stream_options", "truncation"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=7).map(
    lambda fields: json.dumps(fields).encode()
)
plain = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)
HEADERS = (
    *("authorization", "x-api-key", "x-tidegate-priority", "prefer", "idempotency-key", "tidegate-attempt"),
    *("x-stainless-retry-count", "x-stainless-read-timeout", "accept", "accept-language", "x-vllm-priority"),
    *("x-request-id", "origin", "x-forwarded-for", "content-type"),
)
VALUES = ("wait=0", "wait=5", "Bearer x", '"key"', "2", "0.5", "batch", "zh", "nan", "-1")
headers = st.dictionaries(st.sampled_from(HEADERS), plain | st.sampled_from(VALUES), max_size=5)
requests = st.tuples(st.sampled_from(PATHS), objects | st.binary(max_size=60), headers)


@given(st.lists(requests, min_size=1, max_size=6), st.sampled_from([0.0, 0.99]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_request_brings_out_a_fault(batch: list[tuple[str, bytes, dict[str, str]]], level: float) -> None:
    """On an open gate and on a closed one, each request gets the app's answer or an honest one of ours."""

    async def run() -> None:
        classes = [{"name": "standard", "max_wait_s": 0.02, "starvation_s": 0.01}, {"name": "batch"}]
        async with bed(level=Level(level), classes=classes, cors={"allow_origin_regex": ".*"}) as gate:
            answers = await asyncio.gather(
                *(gate.post(body, path=path, headers=lines) for path, body, lines in batch)
            )
            for answer in answers:
                assert answer.status_code in {200, 400, 408, 409, 413, 429, 503}, answer.text
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
            faults = [event for event in gate.events if event.kind is EventKind.FAULT]
            assert faults == []
            state: Any = gate.runtime.statistics()
            assert (state.queued, state.running) == (0, 0)

    asyncio.run(run())
