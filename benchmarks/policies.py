"""The policy benchmark: discrete-event simulation with the real core on a fake clock, seeded.

    python -m benchmarks.policies            half a million requests
    python -m benchmarks.policies --full     more than a million requests
    python -m benchmarks.policies --ours     without the other policies (but the oracle)

Law of this file: it runs the scenarios, prints one table each and one table of targets, and writes
results/policies.json. The scenarios are in policies_kv, policies_fairness, policies_burst, policies_cost.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import policies_burst, policies_cost, policies_fairness, policies_kv
from benchmarks.policies_report import Target, machine, print_table, print_targets

RESULT = Path(__file__).parent / "results/policies.json"
LOAD_S, FULL_LOAD_S = 300.0, 700.0
SEEDS, FULL_SEEDS = 3, 5
GROUPS = ("kv", "fairness", "burst", "cost")


def run(group: str, *, full: bool, policies: list[str]) -> tuple[list[dict[str, Any]], list[Target]]:
    """One group of scenarios."""
    load_s = FULL_LOAD_S if full else LOAD_S
    if group == "kv":
        return policies_kv.run_all(load_s, policies)
    if group == "fairness":
        return policies_fairness.run_all(load_s, policies)
    if group == "burst":
        return policies_burst.run_all(FULL_SEEDS if full else SEEDS, policies)
    return policies_cost.run_all(full=full)


def print_rows(rows: list[dict[str, Any]]) -> None:
    """One table for each set of columns."""
    shapes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        shapes.setdefault(tuple(row), []).append(row)
    for columns, alike in shapes.items():
        header = [column.replace("_", " ") for column in columns]
        print_table(header, [[row[column] for column in columns] for row in alike])


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="more than a million requests")
    parser.add_argument("--ours", action="store_true", help="ours and the oracle only")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    policies = ["tidegate"] if arguments.ours else list(policies_kv.POLICIES)
    result: dict[str, Any] = {"benchmark": "policies", "machine": machine(), "full": arguments.full}
    targets: list[dict[str, Any]] = []
    began = time.monotonic()
    for group in arguments.groups:
        rows, mine = run(group, full=arguments.full, policies=policies)
        result[group] = rows
        targets += [target.as_dict() for target in mine]
        print_rows(rows)
    result["requests"] = sum(
        int(row.get("requests", 0)) for group in arguments.groups for row in result[group]
    )
    result["targets"] = targets
    print_targets(targets)
    print(f"{result['requests']:,} requests in {time.monotonic() - began:.0f} s")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
