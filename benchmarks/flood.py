"""The flood benchmark: a real vLLM on the CPU, and what stands before it.

    python -m benchmarks.flood --runs 5

Law of this file: it starts the parts, one measurement at a time, fronts interleaved within every run, and
writes down what they printed. Fronts: nothing; HAProxy with maxconn 32 (hand-tuned to workload "even") and a
priority class for the VIP; Tidegate inside the engine, told who the VIP is and nothing else. Each measurement
is one flood of `benchmarks.flood_load` beside its VIP, both in processes of their own.

Needs `scripts/engine_environment` (built on demand) and Debian's `haproxy`; about three and a half minutes a
run on two cores. Nice levels: engine 0, API server and HAProxy -12, generators -10 and -12 where allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from benchmarks.engine_bed import (
    ROOT,
    SERVER_NICE,
    Engine,
    build_environment,
    running_engine,
    serve_command,
)
from benchmarks.flood_load import VIP_KEY
from benchmarks.flood_report import print_report, summarise

RESULT = ROOT / "benchmarks/results/flood.json"
WORKLOADS = ("even", "shift")
IDLE_S = 12.0
TENANTS = json.dumps([{"name": "vip", "keys": [VIP_KEY], "priority_class": "vip"}])

HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    timeout queue 600s
frontend door
    bind 127.0.0.1:{port}
    http-request set-priority-class int(-10) if {{ req.hdr(authorization) -m str "Bearer {key}" }}
    default_backend engine
backend engine
    server engine {engine} maxconn 32
"""


@contextmanager
def haproxy(engine: Engine, directory: Path) -> Iterator[str]:
    """HAProxy before the engine; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = directory / "haproxy.cfg"
    config.write_text(HAPROXY.format(port=port, key=VIP_KEY, engine=engine.url.removeprefix("http://")))
    process = subprocess.Popen(["haproxy", "-q", "-f", str(config)])
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process.pid, SERVER_NICE)
    try:
        while not _listens(port):
            if process.poll() is not None:
                raise RuntimeError(f"HAProxy ended with {process.returncode}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def _generator(role: str, url: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.flood_load", role, "--url", url, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"a load generator ended with {process.returncode}")
    result: dict[str, Any] = json.loads(output)
    return result


def measure_idle(url: str) -> dict[str, Any]:
    """The VIP alone."""
    vip = _generator("vip", url)
    time.sleep(IDLE_S)
    vip.send_signal(signal.SIGTERM)
    return _result(vip)


def measure(engine: Engine, url: str, workload: str, seed: int) -> dict[str, Any]:
    """One flood with its VIP through `url`."""
    engine.wait_idle()
    before = engine.metric("vllm:num_preemptions_total")
    vip = _generator("vip", url)
    jobs = _generator("jobs", url, "--workload", workload, "--seed", str(seed))
    try:
        flood = _result(jobs)
    finally:
        vip.send_signal(signal.SIGTERM)
    result = {"jobs": flood, "vip": _result(vip)}
    engine.wait_idle()
    return result | {"preemptions": engine.metric("vllm:num_preemptions_total") - before}


def measure_engine(
    home: Path, directory: Path, *, gated: bool, seed: int, workloads: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Starts one engine and measures every front that goes with it."""
    rows: list[dict[str, Any]] = []
    environment = {"TIDEGATE_TENANTS": TENANTS} if gated else {}
    log = directory / f"engine-{seed}-{'gated' if gated else 'bare'}.log"
    with running_engine(serve_command(home, gated=gated), log, environment=environment) as engine:
        measure_idle(engine.url)  # first requests pay for lazy imports
        idle = measure_idle(engine.url)
        rows.append(
            {"front": "tidegate" if gated else "nothing", "workload": "idle", "seed": seed, "vip": idle}
        )
        fronts = ["tidegate"] if gated else ["nothing", "haproxy"]
        if seed % 2:
            fronts.reverse()
        for workload in workloads if seed % 2 else reversed(workloads):
            for front in fronts:
                with haproxy(engine, directory) if front == "haproxy" else nullcontext(engine.url) as url:
                    row = measure(engine, url, workload, seed)
                rows.append({"front": front, "workload": workload, "seed": seed} | row)
                _progress(rows[-1])
    return rows


def _progress(row: dict[str, Any]) -> None:
    ttft = sorted(row["vip"]["ttft_s"])
    parts = (
        f"run {row['seed']} {row['workload']:5} {row['front']:8}",
        f"preemptions {row['preemptions']:4.0f}",
        f"goodput {row['jobs']['goodput_tokens_per_s']:6.0f} tok/s",
        f"VIP TTFT p50 {ttft[len(ttft) // 2]:.3f} s, most {ttft[-1]:.2f} s",
        f"own delay p99 {row['vip']['own_delay']['p99_s'] * 1000:.0f} ms",
    )
    print("  ".join(parts), file=sys.stderr, flush=True)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--only", choices=("bare", "gated"), help="for trials: one of the two engines")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    home = build_environment()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(1, arguments.runs + 1):
            engines = [
                gated for gated in (False, True) if arguments.only in (None, "gated" if gated else "bare")
            ]
            for gated in engines if seed % 2 else reversed(engines):
                rows += measure_engine(
                    home, Path(directory), gated=gated, seed=seed, workloads=tuple(arguments.workloads)
                )
    result = summarise(rows)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print_report(result)


if __name__ == "__main__":
    main()
