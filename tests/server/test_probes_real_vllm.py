"""The automatic choice on the real vLLM: one API server, two of them, and two data-parallel engines.

`scripts/engine_environment` builds the engine; each case starts it once, in about half a minute.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.engine_bed import OPTIONS, READ_S, ROOT, Engine, build_environment, running_engine
from tests.server.expositions.probe_page import PATH
from tidegate.core.reading import Reading
from tidegate.probes.auto import find_probe
from tidegate.probes.options import ProbeOptions
from tidegate.probes.protocol import ProbeError, as_readings, close

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

NEVER_S = 900.0  # no measure of anything: what has not come by then is not coming
AT_ONCE = 8  # connections: of two processes at one socket, an idle one may take each that comes alone
CAPACITY_TOKENS = 16_384
CALLERS = 100
ANSWER: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
MIDDLEWARE = "--middleware=tests.server.expositions.probe_page.ProbePage"


def command(*options: str) -> list[str]:
    """Return the command that serves the tiny model."""
    home = build_environment()
    run = [str(home / "venv/bin/python"), "-m", "tests.server.expositions.vllm_serve", "serve"]
    return [*run, str(home / "model"), *OPTIONS, MIDDLEWARE, *options]


async def pages(engine: Engine, processes: int) -> list[dict[str, Any]]:
    """Return what each API server process sees; a new connection may reach another process."""
    seen: dict[int, dict[str, Any]] = {}
    end = time.monotonic() + NEVER_S
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    while len(seen) < processes:
        assert time.monotonic() < end, f"{len(seen)} of {processes} processes answered"
        async with httpx.AsyncClient(timeout=READ_S, limits=limits) as client:
            answers = await asyncio.gather(
                *(client.get(engine.url + PATH) for _ in range(AT_ONCE if processes > 1 else 1))
            )
        seen |= {page["pid"]: page for page in (answer.json() for answer in answers)}
    return list(seen.values())


async def over_http(engine: Engine, **options: Any) -> list[Reading]:
    """Read the engine's page from outside; a server that is late is asked again."""
    probe, _ = find_probe(ProbeOptions(urls=(engine.url,), timeout_s=30, **options))
    end = time.monotonic() + NEVER_S
    try:
        while True:
            try:
                return as_readings(await probe.read())
            except ProbeError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.5)
    finally:
        await close(probe)


async def work(engine: Engine, callers: int, enough: asyncio.Event) -> int:
    """Let this many callers ask, one request after the other, until it is enough; how many were answered."""
    answered = 0
    # A connection each: one kept alive may be closed by the server just as the next request sets out on it.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=NEVER_S, limits=limits) as client:

        async def call(name: int) -> None:
            nonlocal answered
            while not enough.is_set():
                body = {"model": "tiny", "prompt": f"{name} " + "hello " * 100} | ANSWER
                (await client.post(f"{engine.url}/v1/completions", json=body)).raise_for_status()
                answered += 1

        await asyncio.gather(*(call(name) for name in range(callers)))
    return answered


async def levels(engine: Engine, processes: int) -> dict[str, float]:
    """Return each engine's level now, as each API server process and a reader from outside see it."""
    seen = {
        f"process {page['pid']}, engine {reading['instance']}": float(reading["kv_usage"])
        for page in await pages(engine, processes)
        for reading in page["readings"]
    }
    outside = {f"outside, engine {each.instance}": each.kv_usage or 0.0 for each in await over_http(engine)}
    return seen | outside


async def highest(
    engine: Engine, processes: int, working: asyncio.Future[int], above: float
) -> dict[str, float]:
    """Look until every source has once been above the level, each in its own time; the highest of each."""
    end = time.monotonic() + NEVER_S
    shown: dict[str, float] = {}
    while not shown or min(shown.values()) <= above:
        fail_with(working)
        assert time.monotonic() < end, f"not all above {above}: {shown}"
        shown = {
            name: max(level, shown.get(name, 0.0))
            for name, level in (await levels(engine, processes)).items()
        }
        await asyncio.sleep(0.1)
    return shown


def fail_with(working: asyncio.Future[int]) -> None:
    """Says why a caller has failed, if one has, so that nobody looks at an idle engine."""
    if working.done():
        working.result()


async def all_at_work(engine: Engine, working: asyncio.Future[int]) -> None:
    """Returns once each engine has said, at whatever time, that it runs something."""
    end = time.monotonic() + NEVER_S
    idle = {reading.instance for reading in await over_http(engine)}
    while idle:
        fail_with(working)
        assert time.monotonic() < end, f"never at work: {idle}"
        idle -= {reading.instance for reading in await over_http(engine) if reading.running}


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
    with running_engine(command(*options), tmp_path / "log", environment=environment) as engine:
        for page in await pages(engine, processes):
            assert words in page["why"]
            assert len(page["readings"]) == engines
            for reading in page["readings"]:
                assert (reading["kv_usage"], reading["asleep"]) == (0.0, False)
                assert (reading["capacity_tokens"], reading["block_tokens"]) == (CAPACITY_TOKENS, 128)
                assert reading["max_model_tokens"] == 2048  # from the app: the registry does not say
        outside = await over_http(engine)
        assert [(each.kv_usage, each.max_model_tokens) for each in outside] == [(0.0, 2048)] * engines

        # The load goes on until everybody has seen it: how fast this machine is does not matter.
        enough = asyncio.Event()
        working = asyncio.ensure_future(work(engine, CALLERS * engines, enough))
        try:
            shown = await highest(engine, processes, working, above=0.5)
            assert len(shown) == (processes + 1) * engines
            if engines > 1:
                await all_at_work(engine, working)
                (fused,) = await over_http(engine, per_engine=False)
                assert fused.capacity_tokens == CAPACITY_TOKENS * engines
        finally:
            enough.set()
            answered = await working
        (after,) = await over_http(engine, per_engine=False)
        assert after.generation_tokens == answered * ANSWER["max_tokens"]
