"""From the rows of the flood benchmark to its table and its targets.

Law of this file: medians over runs with their spread; VIP figures pooled over runs; a target that was missed
says so.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.policies_measures import percentile
from benchmarks.policies_report import Target, machine, print_table, print_targets

FRONTS = ("nothing", "haproxy", "tidegate")


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that goes into flood.json."""
    idle = [
        ttft
        for row in rows
        if row["workload"] == "idle" and row["front"] == "nothing"
        for ttft in row["vip"]["ttft_s"]
    ]
    gated_idle = [
        ttft
        for row in rows
        if row["workload"] == "idle" and row["front"] == "tidegate"
        for ttft in row["vip"]["ttft_s"]
    ]
    cells = {
        workload: {
            front: _cell([row for row in rows if (row["workload"], row["front"]) == (workload, front)])
            for front in FRONTS
        }
        for workload in ("even", "shift")
    }
    result: dict[str, Any] = {
        "benchmark": "flood",
        "machine": machine(),
        "runs": max((row["seed"] for row in rows), default=0),
        "idle_ttft_s": {"nothing": _tail(idle), "tidegate": _tail(gated_idle)},
        "cells": cells,
        "rows": rows,
    }
    result["targets"] = [target.as_dict() for target in _targets(result)]
    return result


def _tail(values: list[float]) -> dict[str, float]:
    return {"p50": percentile(values, 0.5), "p95": percentile(values, 0.95), "p99": percentile(values, 0.99)}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _cell(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not rows:
        return None
    pooled = [ttft for row in rows for ttft in row["vip"]["ttft_s"]]
    return {
        "runs": len(rows),
        "preemptions": _spread([row["preemptions"] for row in rows]),
        "goodput_tokens_per_s": _spread([row["jobs"]["goodput_tokens_per_s"] for row in rows]),
        "tries": _spread([float(row["jobs"]["tries"]) for row in rows]),
        "job_latency_p99_s": _spread([percentile(row["jobs"]["latencies_s"], 0.99) for row in rows]),
        "vip_ttft_s": _tail(pooled),
        "vip_ttft_p50_s": _spread([percentile(row["vip"]["ttft_s"], 0.5) for row in rows]),
        "vip_ttft_p99_s": _spread([percentile(row["vip"]["ttft_s"], 0.99) for row in rows]),
        "vip_gate_wait_s": _tail([wait for row in rows for wait in row["vip"]["gate_wait_s"]]),
        "vip_refused": sum(row["vip"]["refused"] for row in rows),
        "own_delay_p99_s": {
            "jobs": max(row["jobs"]["own_delay"]["p99_s"] for row in rows),
            "vip": max(row["vip"]["own_delay"]["p99_s"] for row in rows),
        },
    }


def _targets(result: dict[str, Any]) -> list[Target]:
    targets: list[Target] = []
    idle_p50 = result["idle_ttft_s"]["nothing"]["p50"]
    for workload, cells in result["cells"].items():
        ours = cells["tidegate"]
        others = [
            cells[front]["goodput_tokens_per_s"]["median"] for front in ("nothing", "haproxy") if cells[front]
        ]
        if ours is None or not others:
            continue
        goodput = ours["goodput_tokens_per_s"]["median"]
        targets += [
            Target(f"{workload}: preemptions, most in any run", ours["preemptions"]["most"], "<=", 0),
            Target(f"{workload}: goodput over the better of the others", goodput / max(others), ">=", 0.97),
            Target(f"{workload}: VIP TTFT p50 over idle", ours["vip_ttft_s"]["p50"] / idle_p50, "<=", 1.5),
            Target(f"{workload}: VIP TTFT p95, s", ours["vip_ttft_s"]["p95"], "<=", 0.3),
        ]
    return targets


def _range(spread: dict[str, float], digits: int) -> str:
    return f"{spread['median']:.{digits}f} [{spread['least']:.{digits}f}-{spread['most']:.{digits}f}]"


def print_report(result: dict[str, Any]) -> None:
    """The table and the targets."""
    table = []
    for workload, cells in result["cells"].items():
        for front, cell in cells.items():
            if cell is None:
                continue
            vip = cell["vip_ttft_s"]
            delay = {role: 1000 * delay_s for role, delay_s in cell["own_delay_p99_s"].items()}
            table.append(
                [
                    workload,
                    front,
                    _range(cell["preemptions"], 0),
                    _range(cell["goodput_tokens_per_s"], 0),
                    f"{vip['p50']:.3f} / {vip['p95']:.3f} / {vip['p99']:.3f}",
                    f"{cell['vip_gate_wait_s']['p95']:.3f} / {cell['vip_gate_wait_s']['p99']:.3f}",
                    _range(cell["job_latency_p99_s"], 1),
                    _range(cell["tries"], 0),
                    f"{delay['jobs']:.0f} / {delay['vip']:.0f}",
                ]
            )
    for front, tail in result["idle_ttft_s"].items():
        ttft = f"{tail['p50']:.3f} / {tail['p95']:.3f} / {tail['p99']:.3f}"
        table.append(["idle", front, "", "", ttft, "", "", "", ""])
    header = [
        "workload",
        "front",
        "preemptions",
        "goodput tok/s",
        "VIP TTFT p50/p95/p99 s",
        "of it in the gate p95/p99 s",
        "job p99 s",
        "tries",
        "own delay p99 ms",
    ]
    print_table(header, table)
    print_targets(result["targets"])
