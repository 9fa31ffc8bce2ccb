"""What the app around the gate knows of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tests.server.bed import Lifespan
from tidegate import AdmissionMiddleware, Settings
from tidegate.probes.auto import find_probe
from tidegate.probes.host_app import context_limit_tokens
from tidegate.probes.options import ProbeOptions
from tidegate.probes.registry import RegistryProbe


def vllm(limit: object = 2048) -> FastAPI:
    """Return an app that keeps its engine's configuration where vLLM's API server does."""
    app = FastAPI()
    app.state.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=limit))
    return app


def level(registry: CollectorRegistry) -> Gauge:
    """Publish a level as vLLM does."""
    gauge = Gauge("vllm:kv_cache_usage_perc", "", ["engine"], registry=registry)
    gauge.labels("0").set(0.5)
    return gauge


@pytest.mark.parametrize(
    ("app", "limit"),
    [
        (vllm(), 2048),
        (vllm(None), None),
        (vllm(0), None),
        (vllm(True), None),
        (vllm("2048"), None),
        (FastAPI(), None),
        (None, None),
        (SimpleNamespace(state=None), None),
    ],
)
def test_the_limit_is_a_number_or_unknown(app: object, limit: int | None) -> None:
    """An app of another kind, or one that says something odd, leaves it unknown."""
    assert context_limit_tokens(app) == limit


def test_the_registry_s_readings_carry_the_app_s_limit() -> None:
    """Also when the app learns it only after the gate was built; a limit that is published counts first."""
    registry, app = CollectorRegistry(), FastAPI()
    level(registry)
    probe = RegistryProbe(registry, host_app=app)
    assert [reading.max_model_tokens for reading in probe.read_now()] == [None]

    app.state.vllm_config = vllm(4096).state.vllm_config
    assert [reading.max_model_tokens for reading in probe.read_now()] == [4096]

    Gauge("my_limit", "", registry=registry).set(1024)
    named = RegistryProbe(registry, names={"max_model_tokens": "my_limit"}, host_app=app)
    assert [reading.max_model_tokens for reading in named.read_now()] == [1024]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_the_automatic_choice_hands_the_app_on(when: str, tmp_path: Any) -> None:
    """Whether the engine publishes before the gate is built or after."""
    registry = CollectorRegistry()
    if when == "before":
        level(registry)
    probe, _ = find_probe(
        ProbeOptions(),
        registry=registry,
        environ={},
        modules={},
        snapshot_directory=tmp_path,
        host_app=vllm(),
    )
    if when == "after":
        level(registry)

    (reading,) = await probe.read()  # type: ignore[misc]
    assert reading.max_model_tokens == 2048


@pytest.fixture
def published() -> Iterator[None]:
    """Let this very process look like vLLM's API server."""
    gauge = level(REGISTRY)
    yield
    REGISTRY.unregister(gauge)


async def test_a_gate_in_the_engine_s_server_knows_the_context_limit(published: None) -> None:
    """A prompt that is certainly longer is refused for good, as with the limit of `/v1/models`."""
    app = vllm()
    app.add_middleware(AdmissionMiddleware, settings=Settings(metrics=False))
    transport = httpx.ASGITransport(app=app)
    async with (
        Lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://gate") as client,
    ):
        body = {"model": "m", "prompt": [1] * 3000, "max_tokens": 5}
        for _ in range(3000):  # until the first reading is in
            response = await client.post("/v1/completions", json=body)
            if response.status_code != 404:
                break
            await asyncio.sleep(0.02)

    assert response.status_code == 413, response.text
    assert "context limit is 2048" in response.text
    assert "retry-after" not in response.headers
