"""The context limit, asked of the list of models beside the metrics."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.server.expositions import page
from tests.server.expositions.misbehaving import Behaviour, Server, answer, serving
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.prometheus_http import PrometheusHttpProbe
from tidegate.probes.protocol import ProbeError

PAGE = page("vllm_0.32.0")


def probe(server: Server) -> PrometheusHttpProbe:
    """A probe of the server that asks for the models too."""
    http = BoundedHttp(timeout_s=5.0, max_bytes=2**20, headers=None)
    return PrometheusHttpProbe(server.url, http=http, read_models=True)


def models(body: bytes, *, status: str = "200 OK") -> Behaviour:
    """Answer metrics, and this at /v1/models."""

    async def behave(head: str, writer: asyncio.StreamWriter) -> None:
        is_models = head.startswith("GET /v1/models ")
        await (answer(body, status=status) if is_models else answer(PAGE))(head, writer)

    return behave


async def test_the_context_limit_is_asked_once() -> None:
    """The least limit of the models served is kept; the list is not asked for again."""
    body = b'{"data": [{"max_model_len": 4096}, {"max_model_len": 2048}, {"max_model_len": true}, 3, {}]}'
    async with serving(models(body)) as server:
        source = probe(server)
        readings = [reading for _ in range(3) for reading in await source.read()]
        await source.aclose()

    assert [reading.max_model_tokens for reading in readings] == [2048, 2048, 2048]
    assert sum("/v1/models" in head for head in server.requests) == 1


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 100_000, b"[]", b'{"data": 3}', b'{"data": [{"max_model_len": -1}]}']
)
async def test_a_bad_model_list_costs_nothing(body: bytes) -> None:
    """No context limit, but a reading."""
    async with serving(models(body)) as server:
        source = probe(server)
        (reading,) = await source.read()
        await source.aclose()

    assert (reading.kv_usage, reading.max_model_tokens) == (0.7734375, None)


async def test_a_refused_model_list_is_asked_three_times() -> None:
    """Models behind an API key are given up on soon."""
    async with serving(models(b"", status="401 Unauthorized")) as server:
        source = probe(server)
        for _ in range(5):
            await source.read()
        await source.aclose()

    assert sum("/v1/models" in head for head in server.requests) == 3


@pytest.mark.parametrize("is_seen_to_be_away", [True, False])
async def test_an_engine_that_comes_back_is_asked_for_its_context_limit_anew(
    is_seen_to_be_away: bool,
) -> None:
    """Its limit may be another one: prompts must not be refused for good by that of the engine before."""
    limit, metrics, status = 2048, PAGE, "200 OK"

    async def behave(head: str, writer: asyncio.StreamWriter) -> None:
        models = b'{"data": [{"max_model_len": %d}]}' % limit
        is_models = head.startswith("GET /v1/models ")
        await answer(models if is_models else metrics, status=status)(head, writer)

    async with serving(behave) as server:
        source = probe(server)
        (before,) = await source.read()
        limit = 32_768
        if is_seen_to_be_away:
            status = "503 Service Unavailable"
            with pytest.raises(ProbeError):
                await source.read()
            status = "200 OK"
        else:
            metrics = re.sub(rb"(?m)^(vllm:\w+_tokens_total\{.*\}) .*$", rb"\1 0.0", PAGE)
        readings = [reading for _ in range(3) for reading in await source.read()]
        await source.aclose()

    assert before.max_model_tokens == 2048
    assert [reading.max_model_tokens for reading in readings] == [32_768] * 3
    assert sum("/v1/models" in head for head in server.requests) == 2
