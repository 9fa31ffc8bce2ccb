"""The overhead benchmark: what the gate costs an app, side by side with its peers in one run.

    pip install -r benchmarks/requirements.txt        (the peers)
    python -m benchmarks.overhead

Law of this file: all servers are up throughout and measured in turns, so that what else the machine does
falls on all alike; figures are medians of the rounds. Peers that are not installed are left out and named.
Needs `wrk` and room for 10,000 open files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.overhead_load import Crowd, get_json, streams, wrk
from benchmarks.policies_report import Target, machine, print_table, print_targets

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/overhead.json"
PEERS = {"slowapi": "slowapi", "asgi_ratelimit": "ratelimit", "fastapi_limiter": "fastapi_limiter"}
# What these decide is compared with what was sent to them.
COUNTED = ("tidegate", "tidegate_refusing", "tidegate_fastapi")
CONNECTIONS = 16
STREAMS = 200  # in a sample: processor time comes in ticks of 10 ms
HELD = 10_000


class Server:
    """One uvicorn process."""

    def __init__(self, variant: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.overhead_apps:create"]
        command += ["--port", str(self.port), "--no-access-log", "--log-level=warning", "--backlog=4096"]
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OVERHEAD_APP": variant})
        self.usage = psutil.Process(self.process.pid)

    def wait_ready(self) -> None:
        """Until it accepts connections."""
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                raise RuntimeError("a server ended before it was ready")
            time.sleep(0.1)
        raise RuntimeError("a server did not become ready")

    def cpu_s(self) -> float:
        """Processor time used so far."""
        times = self.usage.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> int:
        """Resident bytes."""
        return int(self.usage.memory_info().rss)


@contextmanager
def servers(*variants: str) -> Iterator[dict[str, Server]]:
    """All of them, up and warm; ended afterwards."""
    running = {variant: Server(variant) for variant in variants}
    try:
        for server in running.values():
            server.wait_ready()
            wrk(server.port, connections=4, seconds=1)
        yield running
    finally:
        for server in running.values():
            server.process.kill()  # nothing in them needs a graceful end
            server.process.wait()


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}


def measure_rates(rounds: int, seconds: int, variants: list[str]) -> list[dict[str, Any]]:
    """Throughput at 16 connections and latency at one, every variant in every round."""
    loaded: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    single: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    with servers(*variants) as running:
        for number in range(rounds):
            for variant in variants if number % 2 else reversed(variants):
                port = running[variant].port
                loaded[variant].append(wrk(port, connections=CONNECTIONS, seconds=seconds))
                single[variant].append(wrk(port, connections=1, seconds=max(1, seconds // 2)))
        for variant in filter(variants.__contains__, COUNTED):
            sent = sum(row["requests"] for row in loaded[variant] + single[variant])
            decided = asyncio.run(get_json(running[variant].port, "/leases"))["decided"]
            if decided < 0.95 * sent:  # it would be fast because it let everything pass
                raise RuntimeError(f"{variant} decided on {decided} of {sent:.0f} requests")
    rows = []
    for variant in variants:
        busy, alone = _medians(loaded[variant]), _medians(single[variant])
        rows.append(
            {
                "app": variant,
                "requests_per_s": busy["requests_per_s"],
                "p50_us": alone["p50_us"],
                "p99_us": alone["p99_us"],
                "not_2xx": busy["not_2xx"],
                "broken": busy["broken"],
            }
        )
    return rows


def measure_streams(rounds: int) -> dict[str, float]:
    """Processor time of the server for one streamed answer of 1,000 chunks, milliseconds."""
    spent: dict[str, list[float]] = {"bare": [], "tidegate": []}
    with servers("bare", "tidegate") as running:
        for server in running.values():
            asyncio.run(streams(server.port, 2))
        for _ in range(rounds):
            for variant, server in running.items():
                before = server.cpu_s()
                asyncio.run(streams(server.port, STREAMS))
                spent[variant].append(1000 * (server.cpu_s() - before) / STREAMS)
    return {variant: statistics.median(samples) for variant, samples in spent.items()}


async def measure_crowd(held: int) -> dict[str, Any]:
    """Memory of `held` waiting requests, and what is left when they have all gone."""
    grown: dict[str, float] = {}
    row: dict[str, Any] = {"held": held}
    with servers("bare", "tidegate_full") as running:
        for variant, server in running.items():
            crowd = Crowd(server.port)
            before = server.memory()
            await crowd.come(held)
            await _settled(server)
            grown[variant] = (server.memory() - before) / held
            if variant == "tidegate_full":
                row |= {"while_held": await get_json(server.port, "/leases")}
            await crowd.leave()
            await _settled(server)
            if variant == "tidegate_full":
                row |= {"after": await get_json(server.port, "/leases")}
    extra = grown["tidegate_full"] - grown["bare"]
    return row | {
        "bytes_each_bare": grown["bare"],
        "bytes_each_queued": grown["tidegate_full"],
        "bytes_each_above_bare": extra,
    }


async def _settled(server: Server) -> None:
    """Until the server has done with what it was sent."""
    for _ in range(60):
        used = server.cpu_s()
        await asyncio.sleep(1.0)
        if server.cpu_s() - used < 0.1:
            return


def make_targets(result: dict[str, Any]) -> list[Target]:
    """What was promised."""
    rates = {row["app"]: row for row in result["rates"]}
    bare, ours, refusing = (rates[name] for name in ("bare", "tidegate", "tidegate_refusing"))
    targets = [
        Target("throughput over the bare app", ours["requests_per_s"] / bare["requests_per_s"], ">=", 0.8)
    ]
    for peer in PEERS:
        if peer in rates:
            on_fastapi = peer == "fastapi_limiter"  # the same app for both
            gated = rates["tidegate_fastapi"] if on_fastapi else ours
            name = f"throughput over {peer}{', both on FastAPI' if on_fastapi else ''}"
            targets.append(Target(name, gated["requests_per_s"] / rates[peer]["requests_per_s"], ">=", 1.0))
    refusal = refusing["requests_per_s"] / bare["requests_per_s"]
    stream = result["streams_cpu_ms"]
    crowd = result["crowd"]
    return [
        *targets,
        Target("refusals per second over bare answers per second", refusal, ">=", 1.0),
        Target("CPU of a stream of 1,000 chunks over bare", stream["tidegate"] / stream["bare"], "<=", 1.15),
        Target("bytes of a queued request above bare", crowd["bytes_each_above_bare"], "<=", 8192),
        Target(
            "left behind when all have gone (running + queued)",
            float(crowd["after"]["running"] + crowd["after"]["queued"]),
            "<=",
            0,
        ),
    ]


def main() -> None:
    """Command line entry."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--held", type=int, default=HELD)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    missing = [peer for peer, module in PEERS.items() if find_spec(module) is None]
    peers = [peer for peer in PEERS if peer not in missing]
    variants = ["bare", "floor", "tidegate", "tidegate_refusing", "bare_fastapi", "tidegate_fastapi", *peers]
    result: dict[str, Any] = {
        "benchmark": "overhead",
        "machine": machine(),
        "not_installed": missing,
        "rates": measure_rates(arguments.rounds, arguments.seconds, variants),
        "streams_cpu_ms": measure_streams(arguments.rounds),
        "crowd": asyncio.run(measure_crowd(arguments.held)),
    }
    result["targets"] = [target.as_dict() for target in make_targets(result)]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    columns = list(result["rates"][0])
    print_table(columns, [[row[column] for column in columns] for row in result["rates"]])
    print_table(list(result["streams_cpu_ms"]), [list(result["streams_cpu_ms"].values())])
    print_table(list(result["crowd"]), [list(result["crowd"].values())])
    print_targets(result["targets"])
    if missing:
        print(f"not installed, left out: {', '.join(missing)}")


if __name__ == "__main__":
    main()
