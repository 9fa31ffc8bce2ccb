"""The automatic choice on the real vLLM: one API server, two of them, and two data-parallel engines.

`scripts/engine_environment` builds the engine; each case starts it once, in about half a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.engine_bed import OPTIONS, ROOT, Engine, build_environment, running_engine
from tests.server.expositions.probe_page import PATH
from tidegate.core.reading import Reading
from tidegate.probes.auto import find_probe
from tidegate.probes.options import ProbeOptions
from tidegate.probes.protocol import as_readings, close

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CAPACITY_TOKENS = 16_384
REQUESTS = 100
MIDDLEWARE = "--middleware=tests.server.expositions.probe_page.ProbePage"


def command(*options: str) -> list[str]:
    """Return the command that serves the tiny model."""
    home = build_environment()
    run = [str(home / "venv/bin/python"), "-m", "tests.server.expositions.vllm_serve", "serve"]
    return [*run, str(home / "model"), *OPTIONS, MIDDLEWARE, *options]


async def pages(engine: Engine, processes: int) -> list[dict[str, Any]]:
    """Return what each API server process sees; a new connection may reach another process."""
    seen: dict[int, dict[str, Any]] = {}
    end = time.monotonic() + 60
    while len(seen) < processes and time.monotonic() < end:
        async with httpx.AsyncClient(timeout=30) as client:
            page = (await client.get(engine.url + PATH)).json()
        seen[page["pid"]] = page
    assert len(seen) == processes
    return list(seen.values())


async def over_http(engine: Engine, **options: Any) -> list[Reading]:
    """Read the engine's page from outside."""
    probe, _ = find_probe(ProbeOptions(urls=(engine.url,), timeout_s=20, **options))
    try:
        return as_readings(await probe.read())
    finally:
        await close(probe)


async def work(engine: Engine, requests: int) -> None:
    """Ask for more than the caches hold."""
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        bodies = [
            {"model": "tiny", "prompt": f"{n} " + "hello " * 100, "max_tokens": 400, "ignore_eos": True}
            for n in range(requests)
        ]
        await asyncio.gather(*(client.post(f"{engine.url}/v1/completions", json=body) for body in bodies))


async def until(look: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + timeout_s
    while not await look():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "processes", "engines", "words"),
    [
        ((), 1, 1, "the prometheus_client registry of this process: vLLM publishes there"),
        (("--api-server-count=2",), 2, 1, "PROMETHEUS_MULTIPROC_DIR"),
        (("--data-parallel-size=2",), 2, 2, "PROMETHEUS_MULTIPROC_DIR"),
    ],
    ids=["one", "two servers", "two engines"],
)
async def test_the_source_is_found_and_read(
    tmp_path: Path, options: tuple[str, ...], processes: int, engines: int, words: str
) -> None:
    """Empty before the first request, hot under load, seen alike by every process and from outside."""
    environment = {"PYTHONPATH": str(ROOT)}
    with running_engine(command(*options), tmp_path / "log", environment=environment, ready_s=600) as engine:
        for page in await pages(engine, processes):
            assert words in page["why"]
            assert len(page["readings"]) == engines
            for reading in page["readings"]:
                assert (reading["kv_usage"], reading["asleep"]) == (0.0, False)
                assert (reading["capacity_tokens"], reading["block_tokens"]) == (CAPACITY_TOKENS, 128)
                assert reading["max_model_tokens"] == 2048  # from the app: the registry does not say
        outside = await over_http(engine)
        assert [(each.kv_usage, each.max_model_tokens) for each in outside] == [(0.0, 2048)] * engines

        requests = REQUESTS * engines
        working = asyncio.ensure_future(work(engine, requests))

        async def hot() -> bool:
            seen = [each for page in await pages(engine, processes) for each in page["readings"]]
            levels = [float(each["kv_usage"]) for each in seen]
            levels += [reading.kv_usage or 0.0 for reading in await over_http(engine)]
            return min(levels) > 0.5

        await until(hot, timeout_s=300)
        if engines > 1:
            assert all(reading.running for reading in await over_http(engine))
            (fused,) = await over_http(engine, per_engine=False)
            assert fused.capacity_tokens == CAPACITY_TOKENS * engines
        await working
        (after,) = await over_http(engine, per_engine=False)
        assert after.generation_tokens == requests * 400
