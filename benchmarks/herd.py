"""Two hundred callers before a server that serves twenty a second: what each client makes of `Retry-After:
1`.

Every client meets the same real server (uvicorn, a process of its own) on loopback, one after the other, each
in a
fresh process: a token bucket of 20 that refills at 20 per second, 50 ms per answer. The server counts. Then:
a thousand clients that share nothing, all told the same time; and what the client costs a call that succeeds.

    python -m benchmarks.herd                        # the table, and benchmarks/results/herd.json
    pip install -r benchmarks/herd-requirements.txt  # the other clients; those not installed are left out
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx

from benchmarks import herd_clients
from benchmarks.herd_clients import BODY, CLIENTS, plain
from benchmarks.herd_server import BURST, LATENCY_S, RATE_PER_S, Server

CALLS = 200
IDEAL_S = (CALLS - BURST) / RATE_PER_S
RESULTS = pathlib.Path(__file__).parent / "results" / "herd.json"


def busiest(instants: list[float], span_s: float = 0.1) -> int:
    """The most instants within any span."""
    instants = sorted(instants)
    return max((bisect.bisect_right(instants, at + span_s) - n for n, at in enumerate(instants)), default=0)


def measure(name: str, url: str) -> dict[str, Any] | None:
    """One client's row; None when it is not installed."""
    httpx.request("DELETE", url)
    done = subprocess.run(
        [sys.executable, herd_clients.__file__, name, url, f"{CALLS}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"{name}: left out ({done.stderr.strip().splitlines()[-1]})", file=sys.stderr)
        return None
    told = json.loads(done.stdout)
    arrivals = httpx.get(url, timeout=30).json()
    later = arrivals[CALLS:]
    served_first = sum(served for _, served in arrivals[:CALLS])
    served_later = max(1, told["served"] - served_first)
    return {
        "client": name,
        "calls": len(arrivals),
        "served": told["served"],
        "calls_per_success_after_first_wave": round(len(later) / served_later, 3),
        "peak_retries_per_100ms": busiest([at for at, _ in later]),
        "wall_s": round(told["wall_s"], 2),
        "wall_over_ideal": round(told["wall_s"] / IDEAL_S, 3),
    }


def independent_clients(clients: int = 1000, retry_after_s: int = 30) -> dict[str, Any]:
    """Clients that share nothing, all told the same time: when do they come back?"""
    from tidegate_client import RetryTransport
    from tidegate_client.testing import Board, FakeClock, ScriptedServer, refuse

    waits = []
    for seed in range(clients):
        clock = FakeClock(start=0.0, seed=seed)
        server = ScriptedServer(refuse(retry_after_s), clock=clock)
        with httpx.Client(
            transport=RetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
        ) as client:
            client.post("http://engine/")
        waits.append(server.received[1].at)
    return {
        "clients": clients,
        "retry_after_s": retry_after_s,
        "early": sum(wait < retry_after_s for wait in waits),
        "share_in_busiest_100ms": busiest(waits) / clients,
        "latest_s": round(max(waits), 2),
    }


def overhead(url: str, calls: int) -> dict[str, Any]:
    """What a successful call costs beside plain httpx, the two taking turns call by call: medians of the time
    that passed and of the CPU time of the client's process.
    """

    async def main() -> dict[str, Any]:
        import tidegate_client

        limits = httpx.Limits(max_connections=None)
        ours = tidegate_client.AsyncClient(base_url=url, timeout=60, limits=limits)
        wall_s: dict[str, list[float]] = {"plain": [], "ours": []}
        cpu_s: dict[str, list[float]] = {"plain": [], "ours": []}
        pair = (("plain", plain_client), ("ours", ours))
        for turn in range(calls):
            # Each goes first as often as second: a busy machine's scheduler would else favour one of them.
            for name, client in pair if turn % 2 else reversed(pair):
                began, cpu_began = time.perf_counter(), time.process_time()
                await client.post("/v1/chat/completions", json=BODY)
                cpu_s[name].append(time.process_time() - cpu_began)
                wall_s[name].append(time.perf_counter() - began)
        wall = {name: statistics.median(each) for name, each in wall_s.items()}
        cpu = {name: statistics.median(each) for name, each in cpu_s.items()}
        return {
            "calls_each": calls,
            "plain_us": round(wall["plain"] * 1e6, 1),
            "ours_us": round(wall["ours"] * 1e6, 1),
            "overhead_share": round(wall["ours"] / wall["plain"] - 1, 4),
            "overhead_share_of_client_cpu": round(cpu["ours"] / cpu["plain"] - 1, 4),
        }

    plain_client = plain(url)
    return asyncio.run(main())


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows of equal keys as a table."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="only the clients whose name contains this")
    parser.add_argument("--overhead-calls", type=int, default=4000, help="calls per client")
    arguments = parser.parse_args()
    report(arguments.only or "", arguments.overhead_calls)


def report(only: str, overhead_calls: int) -> None:
    """The whole run."""
    with Server(RATE_PER_S, LATENCY_S) as url:
        measured = [measure(name, url) for name in CLIENTS if only in name]
    rows = [row for row in measured if row is not None]
    show(rows)
    apart = independent_clients()
    show([apart])
    with Server(1e9, 0.0) as url:
        cost = overhead(url, overhead_calls)
    show([cost])
    if not only:
        RESULTS.parent.mkdir(exist_ok=True)
        result: dict[str, Any] = {
            "ideal_wall_s": IDEAL_S,
            "calls": CALLS,
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
        }
        result |= {"together": rows, "apart": apart, "overhead": cost}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
