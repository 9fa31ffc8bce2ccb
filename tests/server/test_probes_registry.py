"""The engine's registry in this process, alone and shared between processes."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, Metric

from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes import ProbeError
from tidegate.probes.protocol import as_readings
from tidegate.probes.registry import RegistryProbe

WRITER = """
import os, sys
from prometheus_client import Counter, Gauge
def gauge(name, *labels):
    return Gauge(name, "", ["model_name", "engine", *labels], multiprocess_mode="mostrecent")
level, waiting, running = (
    gauge(f"vllm:{name}") for name in ("kv_cache_usage_perc", "num_requests_waiting", "num_requests_running")
)
preemptions = Counter("vllm:num_preemptions", "", ["model_name", "engine"])
for metric in (level, waiting, running, preemptions):
    metric.labels("m", "0")
for value in sys.argv[1:]:
    level.labels("m", "0").set(float(value))
    waiting.labels("m", "0").set(3)
    running.labels("m", "0").set(2)
    preemptions.labels("m", "0").inc(5)
"""


def engine(registry: CollectorRegistry, level: float = 0.5, *, prefix: str = "vllm:") -> Gauge:
    """Register an engine's gauges, a histogram among them, and return the level."""
    labels = ["model_name", "engine"]
    gauge = Gauge(f"{prefix}kv_cache_usage_perc", "", labels, registry=registry)
    gauge.labels("m", "0").set(level)
    Gauge(f"{prefix}num_requests_running", "", labels, registry=registry).labels("m", "0").set(4)
    Histogram(f"{prefix}time_to_first_token_seconds", "", labels, registry=registry).labels("m", "0").observe(
        1
    )
    return gauge


async def test_the_engine_here_is_read_without_http() -> None:
    """What vLLM's API server has registered is what a reading says."""
    registry = CollectorRegistry()
    gauge = engine(registry)
    probe = RegistryProbe(registry)

    assert await probe.read() == [Reading(kv_usage=0.5, running=4)]
    gauge.labels("m", "0").set(0.75)
    assert [reading.kv_usage for reading in probe.read_now()] == [0.75]
    assert probe.engine_title == "vLLM"


def test_no_engine_here_is_a_failure_with_advice() -> None:
    """An application's own metrics are no level."""
    registry = CollectorRegistry()
    Gauge("http_requests", "", registry=registry).set(1)

    with pytest.raises(ProbeError, match=r"probe\.urls.*--disable-log-stats"):
        RegistryProbe(registry).read_now()


def test_an_engine_may_come_later_and_be_replaced() -> None:
    """The engine is recognised when it publishes, and anew when it was taken away."""
    registry = CollectorRegistry()
    probe = RegistryProbe(registry)
    with pytest.raises(ProbeError):
        probe.read_now()
    gauge = engine(registry, 0.1)
    assert probe.read_now()[0].kv_usage == 0.1

    registry.unregister(gauge)
    for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds"):
        registry.unregister(registry._names_to_collectors[name])
    with pytest.raises(ProbeError):
        probe.read_now()
    engine(registry, 0.2, prefix="lmdeploy:").labels("m", "0").set(0.2)
    Gauge("lmdeploy:gpu_cache_usage_perc", "", registry=registry).set(0.3)
    assert probe.read_now()[0].kv_usage == 0.3


def test_names_and_impossible_figures() -> None:
    """Overrides hold here too, and a percentage is refused."""
    registry = CollectorRegistry()
    engine(registry, 45)
    Gauge("my_level", "", registry=registry).set(0.25)

    assert RegistryProbe(registry, names={"kv_usage": "my_level"}).read_now()[0].kv_usage == 0.25
    with pytest.raises(InvalidReading, match="divide by 100"):
        RegistryProbe(registry).read_now()


def write(directory: Path, *levels: str) -> None:
    """Publish levels from a process of its own."""
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(directory)}
    subprocess.run([sys.executable, "-c", WRITER, *levels], check=True, env=environment, timeout=200)


async def test_processes_that_share_files_are_read_as_one(tmp_path: Path) -> None:
    """The newest value of a gauge counts, whoever wrote it; counters are added; silence adds nothing."""
    write(tmp_path, "0.9")
    write(tmp_path, "0.4")
    write(tmp_path)
    probe = RegistryProbe(CollectorRegistry(), multiproc_dir=str(tmp_path))

    (reading,) = await probe.read()

    assert (reading.kv_usage, reading.waiting, reading.running, reading.preemptions) == (0.4, 3, 2, 10.0)


async def test_the_files_are_found_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROMETHEUS_MULTIPROC_DIR is what the engine's own processes follow."""
    write(tmp_path, "0.7")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))

    assert [reading.kv_usage for reading in await RegistryProbe(CollectorRegistry()).read()] == [0.7]


async def test_one_merge_serves_for_a_moment(tmp_path: Path) -> None:
    """Within `cache_s` the files are not read again; afterwards they are."""
    now = 0.0
    write(tmp_path, "0.5")
    probe = RegistryProbe(CollectorRegistry(), multiproc_dir=str(tmp_path), cache_s=0.2, clock=lambda: now)
    assert as_readings(await probe.read())[0].kv_usage == 0.5
    for file in tmp_path.glob("*.db"):
        file.unlink()

    now = 0.19
    assert as_readings(await probe.read())[0].kv_usage == 0.5
    now = 0.2
    with pytest.raises(ProbeError, match="no metrics files"):
        await probe.read()


async def test_damaged_files_are_a_failure(tmp_path: Path) -> None:
    """Garbage in the directory is said, with the directory's name."""
    beyond_the_end = struct.pack("<iii", 64, 0, 10_000) + b"x" * 52
    for damaged in (beyond_the_end, b"\x40", struct.pack("<iii", 64, 0, 4) + b"nope" + bytes(48)):
        (tmp_path / "gauge_mostrecent_1.db").write_bytes(damaged)
        with pytest.raises(ProbeError, match=str(tmp_path)):
            await RegistryProbe(CollectorRegistry(), multiproc_dir=str(tmp_path)).read()


def test_histograms_are_not_touched() -> None:
    """A reading asks the few collectors it needs: vLLM's thirty histograms would cost ten times as much."""
    registry = CollectorRegistry()
    engine(registry)

    class Untouchable(Histogram):
        def collect(self) -> Iterable[Metric]:
            raise AssertionError("a histogram was asked")

    Untouchable("vllm:e2e_request_latency_seconds", "", registry=registry)
    probe = RegistryProbe(registry)

    assert [reading.kv_usage for _ in range(2) for reading in probe.read_now()] == [0.5, 0.5]
