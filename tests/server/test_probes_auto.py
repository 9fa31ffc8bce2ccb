"""Finding the source, and saying why."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.server.expositions import page
from tests.server.expositions.misbehaving import answer, hang, serving
from tests.server.test_probes_sglang import BUSY, snapshot
from tidegate.core.reading import Reading
from tidegate.probes import Probe, ProbeError, ProbeGroup
from tidegate.probes.auto import find_probe
from tidegate.probes.options import ProbeOptions
from tidegate.probes.prometheus_http import PrometheusHttpProbe
from tidegate.probes.protocol import as_readings, close
from tidegate.probes.registry import RegistryProbe
from tidegate.probes.sglang import SglangLoadsProbe, SglangSnapshotProbe
from tidegate.probes.shared_memory import SharedLevelProbe, SharedLevelWriter


def find(tmp_path: Path, options: dict[str, Any] | None = None, **around: Any) -> tuple[Probe, str]:
    """Look around in an empty process on an empty machine."""
    world: dict[str, Any] = {"registry": CollectorRegistry(), "environ": {}, "modules": {}, **around}
    return find_probe(ProbeOptions(**(options or {})), snapshot_directory=tmp_path, **world)


def engine() -> CollectorRegistry:
    """Return a registry in which vLLM publishes."""
    registry = CollectorRegistry()
    Gauge("vllm:kv_cache_usage_perc", "", ["engine"], registry=registry).labels("0").set(0.5)
    return registry


def test_urls_are_obeyed_first(tmp_path: Path) -> None:
    """A configured page counts even where an engine publishes in this process."""
    probe, why = find(tmp_path, {"urls": "http://a:1/metrics"}, registry=engine())

    assert isinstance(probe, PrometheusHttpProbe)
    assert "http://a:1/metrics" in why
    assert "recognised" in why


def test_several_urls_are_several_probes(tmp_path: Path) -> None:
    """Each instance is polled on its own."""
    probe, why = find(tmp_path, {"urls": "http://a:1/metrics,http://b:1/metrics", "engine": "sglang"})

    assert isinstance(probe, ProbeGroup)
    assert [part.instance for part in probe.parts] == ["a:1", "b:1"]  # type: ignore[attr-defined]
    assert "SGLang" in why


@pytest.mark.parametrize("source", ["auto", "sglang"])
def test_engines_behind_one_host_are_instances_of_their_own(tmp_path: Path, source: str) -> None:
    """A gateway shows each under a path; taken for one, whichever page came last would count."""
    urls = (
        "http://gw/0/metrics,http://gw/1/metrics,http://gw/1/metrics?key=a,http://gw/1/metrics?key=b,http://b"
    )
    probe, _ = find(tmp_path, {"urls": urls, "source": source})

    assert isinstance(probe, ProbeGroup)
    names = [part.instance for part in probe.parts]  # type: ignore[attr-defined]
    assert names[:2] == ["gw/0/metrics", "gw/1/metrics"]
    assert names[-1] == "b"
    assert len(set(names)) == len(names)
    assert not any("key" in name for name in names)


def test_a_path_that_looks_like_a_number_given_to_another_is_told_apart_too(tmp_path: Path) -> None:
    """The search for a free name goes on; it once offered the same name for ever."""
    probe, _ = find(tmp_path, {"urls": "http://gw/m(2),http://gw/m,http://gw/m?a,http://gw/m?b"})

    assert isinstance(probe, ProbeGroup)
    names = [part.instance for part in probe.parts]  # type: ignore[attr-defined]
    assert names == ["gw/m(2)", "gw/m", "gw/m(3)", "gw/m(4)"]


async def test_an_engine_in_this_process_is_found(tmp_path: Path) -> None:
    """vLLM's API server: no HTTP, and the sentence names the engine."""
    probe, why = find(tmp_path, registry=engine())

    assert isinstance(probe, RegistryProbe)
    assert "vLLM publishes there" in why
    assert [reading.kv_usage for reading in await probe.read()] == [0.5]


def test_several_api_servers_are_read_through_their_files(tmp_path: Path) -> None:
    """With PROMETHEUS_MULTIPROC_DIR the sentence says why the registry is not enough."""
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    _, why = find(tmp_path, registry=engine(), environ=environ)

    assert str(tmp_path / "shared") in why
    assert "PROMETHEUS_MULTIPROC_DIR" in why
    assert "vLLM" in why


async def test_nothing_found_is_a_failure_with_advice_that_looks_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gate may be built before the engine publishes; the log says what was found when it was."""
    caplog.set_level(logging.INFO)
    registry = CollectorRegistry()
    probe, why = find(tmp_path, registry=registry)
    assert "looking again" in why
    with pytest.raises(ProbeError, match=r"set probe\.urls"):
        await probe.read()

    Gauge("vllm:kv_cache_usage_perc", "", ["engine"], registry=registry).labels("0").set(0.5)

    for _ in range(2):
        (reading,) = await probe.read()  # type: ignore[misc]
        assert reading.kv_usage == 0.5
    assert caplog.text.count("the level is found") == 1


async def test_a_living_snapshot_is_found(tmp_path: Path) -> None:
    """SGLang on this machine, without any setting."""
    snapshot(tmp_path / "sglang_loads_a_1.shm", {**BUSY, "timestamp": time.time()})
    probe, _ = find(tmp_path)

    (reading,) = await probe.read()  # type: ignore[misc]

    assert reading.kv_usage == 0.71


async def test_sglang_prefers_its_snapshot_to_its_gauges(tmp_path: Path) -> None:
    """The gauges are renewed more seldom."""
    snapshot(tmp_path / "sglang_loads_a_1.shm", {**BUSY, "timestamp": time.time()})
    registry = CollectorRegistry()
    probe, _ = find(tmp_path, registry=registry, modules={"sglang": None})
    Gauge("sglang:token_usage", "", registry=registry).set(0.1)

    (reading,) = await probe.read()  # type: ignore[misc]

    assert reading.kv_usage == 0.71


@pytest.mark.parametrize(
    ("module", "advice"),
    [("vllm", "--disable-log-stats"), ("sglang", "--enable-metrics"), ("x", "8000/metrics")],
)
async def test_advice_knows_what_is_loaded(tmp_path: Path, module: str, advice: str) -> None:
    """An engine that is loaded but publishes nothing has a known cause."""
    probe, why = find(tmp_path, modules={module: None})

    assert advice in why
    with pytest.raises(ProbeError, match=advice):
        await probe.read()


def test_an_engine_with_impossible_figures_is_an_engine(tmp_path: Path) -> None:
    """A percentage in the registry is said at each reading, not taken for absence."""
    registry = CollectorRegistry()
    Gauge("vllm:kv_cache_usage_perc", "", registry=registry).set(45)

    probe, why = find(tmp_path, registry=registry)

    assert isinstance(probe, RegistryProbe)
    assert "an engine publishes" in why


CONFIGURED: list[tuple[dict[str, Any], type, str]] = [
    ({"source": "prometheus", "urls": "http://a/metrics"}, PrometheusHttpProbe, "http://a/metrics"),
    ({"source": "registry"}, RegistryProbe, "registry of this process"),
    ({"source": "sglang"}, SglangSnapshotProbe, "the only one alive"),
    ({"source": "sglang", "path": "/dev/shm/x.shm"}, SglangSnapshotProbe, "/dev/shm/x.shm"),
    ({"source": "sglang", "urls": "http://a"}, SglangLoadsProbe, "/v1/loads"),
    ({"source": "sglang", "urls": "http://a,http://b"}, ProbeGroup, "/v1/loads"),
    ({"source": "shared_memory", "path": "/dev/shm/level"}, SharedLevelProbe, "/dev/shm/level"),
    ({"path": "/dev/shm/level"}, SharedLevelProbe, "/dev/shm/level"),
    ({"path": "/dev/shm/sglang_loads_a_1.shm"}, SglangSnapshotProbe, "sglang_loads_a_1"),
]


@pytest.mark.parametrize(("options", "kind", "words"), CONFIGURED)
def test_what_is_configured_is_obeyed(
    tmp_path: Path, options: dict[str, Any], kind: type, words: str
) -> None:
    """Whatever else is there."""
    probe, why = find(tmp_path, options, registry=engine())

    assert isinstance(probe, kind)
    assert words in why
    assert ("probe.source" in why) == ("source" in options)


async def read(url: str, **options: Any) -> list[Reading]:
    """Read a page as these options say."""
    probe, _ = find_probe(ProbeOptions(urls=(url,), **{"read_models": False, **options}))
    try:
        return as_readings(await probe.read())
    finally:
        await close(probe)


@pytest.mark.parametrize("source", ["prometheus", "sglang"])
async def test_token_and_headers_are_sent(source: str) -> None:
    """A protected page is opened by what is configured."""
    async with serving(answer(page("vllm_0.32.0"))) as server:
        with contextlib.suppress(ProbeError):  # of the page; what was asked is the matter
            await read(server.url, source=source, bearer_token="t0ken", headers={"X-Scope": "gpu"})
    (head,) = {request.lower() for request in server.requests}
    assert "authorization: bearer t0ken" in head
    assert "x-scope: gpu" in head


async def test_bounds_reach_the_fetch() -> None:
    """The size and the time that were configured, not the defaults."""
    async with serving(answer(page("vllm_0.32.0"))) as server:
        with pytest.raises(ProbeError, match="larger than 1024 bytes"):
            await read(server.url, max_bytes=1024)
    async with serving(hang) as server:
        with pytest.raises(ProbeError, match=r"within 0\.1 s"):
            await read(server.url, timeout_s=0.1)


async def test_names_ranks_and_models_reach_the_probe() -> None:
    """Figures placed elsewhere, engines apart or fused, and the context limit asked for or not."""
    async with serving(answer(page("vllm_0.32.0_dp2"))) as server:
        apart = await read(server.url, names={"max_model_tokens": "vllm:cache_config_info@block_size"})
        fused = await read(server.url, per_engine=False)
        assert len(server.requests) == 2
        await read(server.url, read_models=True)
    assert [reading.max_model_tokens for reading in apart] == [16, 16]
    assert [reading.instance.partition("#")[2] for reading in apart] == ["0", "1"]
    assert len(fused) == 1
    assert "GET /v1/models" in server.requests[-1]


async def test_the_age_allowed_to_a_shared_level_is_the_configured_one(tmp_path: Path) -> None:
    """`stale_after_s` is when a silent writer becomes a failure."""
    with SharedLevelWriter(tmp_path / "level", clock=lambda: time.monotonic() - 8.0) as writer:
        writer.write_level(0.5)
        for allowed_s, is_read in ((20.0, True), (5.0, False)):
            options = ProbeOptions(source="shared_memory", path=str(writer.path), stale_after_s=allowed_s)
            probe, _ = find_probe(options)
            with contextlib.nullcontext() if is_read else pytest.raises(ProbeError, match="silent"):
                assert [reading.kv_usage for reading in as_readings(await probe.read())] == [0.5]
            await close(probe)
