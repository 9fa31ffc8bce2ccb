"""What one reading costs, by source.

Run: python -m benchmarks.probes [--json FILE]

- the in-process registry, filled to the size of vLLM's (its gauges, counters and some thirty histograms);
- the same, shared by two processes through files;
- Tidegate's level in shared memory: a repeated reading, and one of a record that is new each time;
- a 1 MB and a 4 MB metrics page over loopback: the time from request to reading, and the longest time the
  event loop was held in one go while it came in. The page is served from another process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidegate.core.reading import Reading
from tidegate.probes import Probe
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.prometheus_http import PrometheusHttpProbe
from tidegate.probes.registry import RegistryProbe
from tidegate.probes.shared_memory import SharedLevelProbe, SharedLevelWriter

Mode = Literal["all", "mostrecent"]
LABELS = ["model_name", "engine"]
HISTOGRAMS = 30
BUCKETS = [0.001 * 1.6**exponent for exponent in range(24)]
MIB = 1024 * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    rows = [*registry_rows(), *shared_memory_rows(), *asyncio.run(page_rows())]
    print(f"{'':<58} {'least':>10} {'median':>10} {'p99':>10}")
    for each in rows:
        print(f"{each.what:<58} {each.least:>10.2f} {each.median:>10.2f} {each.p99:>10.2f} {each.unit}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    least: float
    median: float
    p99: float
    unit: str
    readings: int


def row(what: str, values: list[float], unit: str) -> Row:
    """Return one line of the table."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return Row(what, ordered[0], statistics.median(values), p99, unit, len(values))


def timed(what: str, call: Callable[[], object], rounds: int, batch: int = 1) -> Row:
    """Return what one call costs, in microseconds."""
    for _ in range(min(rounds, 50)):
        call()
    costs = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        for _ in range(batch):
            call()
        costs.append((time.perf_counter_ns() - started) / batch / 1000)
    return row(what, costs, "us")


def fill(registry: CollectorRegistry, mode: Mode = "all") -> None:
    """Register what vLLM's API server registers, by number and kind."""

    def gauge(name: str, *labels: str) -> Gauge:
        return Gauge(f"vllm:{name}", "", [*LABELS, *labels], registry=registry, multiprocess_mode=mode)

    for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"):
        gauge(name).labels("m", "0").set(0.5)
    waiting = gauge("num_requests_waiting_by_reason", "reason")
    for reason in ("capacity", "deferred"):
        waiting.labels("m", "0", reason).set(1)
    sleep = gauge("engine_sleep_state", "sleep_state")
    for state in ("awake", "weights_offloaded", "discard_all"):
        sleep.labels("m", "0", state).set(1)
    options = [f"option_{index}" for index in range(30)]
    config = gauge("cache_config_info", "block_size", "num_gpu_blocks", "kv_cache_size_tokens", *options)
    config.labels("m", "0", "16", "1024", "16384", *options).set(1)
    for name in ("num_preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_hits"):
        Counter(f"vllm:{name}", "", LABELS, registry=registry).labels("m", "0").inc()
    for index in range(HISTOGRAMS):
        histogram = Histogram(f"vllm:histogram_{index}", "", LABELS, registry=registry, buckets=BUCKETS)
        histogram.labels("m", "0").observe(1)


def registry_rows() -> list[Row]:
    """Measure the registry, in memory and in files."""
    registry = CollectorRegistry()
    fill(registry)
    rows = [timed("registry in memory, one reading", RegistryProbe(registry).read_now, 2000)]
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": directory}
        code = "from benchmarks import probes; probes.fill(probes.CollectorRegistry(), 'mostrecent')"
        for _ in range(2):
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        shared = RegistryProbe(CollectorRegistry(), multiproc_dir=directory, cache_s=0.0)
        rows += asyncio.run(repeated("registry files of two processes, one reading", shared, 100))
    return rows


def shared_memory_rows() -> list[Row]:
    """Measure the shared-memory level."""
    with tempfile.TemporaryDirectory() as directory, SharedLevelWriter(Path(directory) / "level") as writer:
        reading = Reading(kv_usage=0.5, waiting=1, running=2, capacity_tokens=16384)
        probe = SharedLevelProbe(writer.path, max_age_s=600.0)
        writer.write(reading)
        rows = [
            timed("shared memory, the bare level", probe.read_level, 2000, batch=100),
            timed("shared memory, a reading, nothing written since", probe.read_now, 2000, batch=100),
            timed("shared memory, one write", lambda: writer.write(reading), 2000, batch=20),
        ]

        with writer.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            records = []
            for _ in range(2):
                writer.write(reading)
                records.append(mapped[:])

            turns = itertools.cycle(records)

            def read_new() -> None:
                mapped[:] = next(turns)
                probe.read_now()

            what = "shared memory, a reading of a new record"
            return [*rows, timed(what, read_new, 2000, batch=100)]


SERVE = """
import http.server, sys
line = b'some_metric_total{handler="/v1/chat/completions",n="%d"} 12345.0\\n'
body = b"".join(line % n for n in range(int(sys.argv[1])))
body += b'vllm:kv_cache_usage_perc{engine="0"} 0.5\\nvllm:num_requests_running{engine="0"} 3\\n'
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, len(body), flush=True)
server.serve_forever()
"""


async def page_rows() -> list[Row]:
    """Measure pages over loopback."""
    rows = []
    for lines in (16_000, 64_000):
        command = [sys.executable, "-c", SERVE, str(lines)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port, size = map(int, server.stdout.readline().split())
            http = BoundedHttp(timeout_s=30, max_bytes=8 * MIB)
            probe = PrometheusHttpProbe(f"http://127.0.0.1:{port}/metrics", http=http, read_models=False)
            rows += await repeated(f"page of {size / MIB:.1f} MB over HTTP, one reading", probe, 40)
            await probe.aclose()
            server.terminate()
    return rows


async def repeated(what: str, probe: Probe, rounds: int) -> list[Row]:
    """Return how long readings take, and how long another task had to wait for the loop meanwhile.

    Both as the clock on the wall says, which counts what else the machine does, and in processor time of
    this thread, which does not count waiting for the interpreter's lock.
    """
    await probe.read()  # the first one loads modules and connects
    costs, walls, works = [], [], []
    wall = work = 0

    async def watch() -> None:
        nonlocal wall, work
        while True:
            at, used = time.perf_counter_ns(), time.thread_time_ns()
            await asyncio.sleep(0)
            wall = max(wall, time.perf_counter_ns() - at)
            work = max(work, time.thread_time_ns() - used)

    for _ in range(rounds):
        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0.01)
        wall = work = 0
        started = time.perf_counter_ns()
        await probe.read()
        costs.append((time.perf_counter_ns() - started) / 1e6)
        walls.append(wall / 1e6)
        works.append(work / 1e6)
        watching.cancel()
    return [
        row(what, costs, "ms"),
        row("  the loop held in one go, longest, by the clock", walls, "ms"),
        row("  the loop held in one go, longest, processor time", works, "ms"),
    ]


if __name__ == "__main__":
    main()
