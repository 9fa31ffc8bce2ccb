"""Scenarios about who goes first: equal tenants, a light one beside a heavy one, VIPs in a flood.

Law of this file: the promises are about ours; first-come-first-served behind the same ledger stands beside
them, to show what the ordering (and not the ledger) is worth.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.policies_engine import EventEngine
from benchmarks.policies_fronts import Cap, Oracle
from benchmarks.policies_gate import GateFront
from benchmarks.policies_kv import CAP, SWEEP_S, capacity_per_s
from benchmarks.policies_measures import completions_per_s, jain, percentile, responses, service, waits
from benchmarks.policies_report import Target
from benchmarks.policies_workloads import ENGINE, even, merge, poisson
from benchmarks.policies_world import Front, Job, World

WARM_S = 60.0
POLICIES: dict[str, Callable[[EventEngine], Front]] = {
    "fixed cap, FIFO": lambda _: Cap(CAP),
    "oracle, FIFO": Oracle,
    "tidegate": lambda _: GateFront(),
}


def _world(policy: str, jobs: list[Job]) -> World:
    engine = EventEngine(ENGINE)
    world = World(engine=engine, front=POLICIES[policy](engine), jobs=jobs, sweep_s=SWEEP_S)
    world.run()
    return world


def equal_tenants(until_s: float) -> list[Job]:
    """Six tenants of equal weight, each asking for more than a sixth; the first asks for ten times that."""
    share = 1.5 * capacity_per_s(even) / 6
    rng = random.Random(11)
    streams = [
        poisson(even, share * (10 if number == 0 else 1), 0, until_s, rng, tenant=f"tenant-{number}")
        for number in range(6)
    ]
    return merge(*streams)


def light_beside_heavy(until_s: float, *, alone: bool) -> list[Job]:
    """A tenant at a fifth of the capacity, and one that asks for ten times as much."""
    rate = 0.2 * capacity_per_s(even)
    light = poisson(even, rate, 0, until_s, random.Random(12), tenant="light")
    heavy = [] if alone else poisson(even, 10 * rate, 0, until_s, random.Random(13), tenant="heavy")
    return merge(light, heavy)


def vip_flood(until_s: float, vip: float, standard: float) -> list[Job]:
    """VIP and standard requests at multiples of the capacity."""
    rate = capacity_per_s(even)
    return merge(
        poisson(even, vip * rate, 0, until_s, random.Random(14), tenant="vip", priority_class="vip"),
        poisson(even, standard * rate, 0, until_s, random.Random(15)),
    )


def run_all(until_s: float, policies: list[str]) -> tuple[list[dict[str, Any]], list[Target]]:
    """All scenarios; rows and targets."""
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for scenario in (_equal, _light, _vip, _endless):
        for policy in POLICIES:
            if policy != "tidegate" and policies == ["tidegate"]:
                continue
            row, mine = scenario(policy, until_s)
            rows.append({"policy": policy} | row)
            targets += mine if policy == "tidegate" else []
    return rows, targets


def _equal(policy: str, until_s: float) -> tuple[dict[str, Any], list[Target]]:
    world = _world(policy, equal_tenants(until_s))
    index = jain(service(world.jobs, WARM_S, until_s).values())
    row = {"scenario": "six equal backlogged tenants, one asks for ten times its share", "jain": index}
    row["requests"] = len(world.jobs)
    return row, [Target("equal backlogged tenants: Jain index of service", index, ">=", 0.99)]


def _light(policy: str, until_s: float) -> tuple[dict[str, Any], list[Target]]:
    solo = _world(policy, light_beside_heavy(until_s, alone=True))
    both = _world(policy, light_beside_heavy(until_s, alone=False))
    alone_s = percentile(responses(solo.jobs, "light", WARM_S, until_s), 0.99)
    beside_s = percentile(responses(both.jobs, "light", WARM_S, until_s), 0.99)
    release_s = 1 / completions_per_s(both.jobs, WARM_S, until_s)
    row = {
        "scenario": "light tenant beside one that asks for ten times as much",
        "requests": len(solo.jobs) + len(both.jobs),
        "solo_p99_s": alone_s,
        "beside_p99_s": beside_s,
        "slot_release_s": release_s,
    }
    name = "light tenant: p99 response over 1.5 x solo + one slot release"
    return row, [Target(name, beside_s / (1.5 * alone_s + release_s), "<=", 1.0)]


def _vip(policy: str, until_s: float) -> tuple[dict[str, Any], list[Target]]:
    world = _world(policy, vip_flood(until_s, vip=0.1, standard=4.0))
    waited_s = percentile(waits(world.jobs, "vip", WARM_S, until_s), 0.99)
    release_s = 1 / completions_per_s(world.jobs, WARM_S, until_s)
    row = {
        "scenario": "VIPs at a tenth of the capacity in a flood of four times the capacity",
        "requests": len(world.jobs),
        "vip_wait_p99_s": waited_s,
        "slot_release_s": release_s,
        "vip_wait_p99_in_releases": waited_s / release_s,
        "vip_lost": sum(job.lost for job in world.jobs if job.priority_class == "vip"),
    }
    return row, [Target("VIP at 4x flood: p99 wait in slot-release times", waited_s / release_s, "<=", 3.0)]


def _endless(policy: str, until_s: float) -> tuple[dict[str, Any], list[Target]]:
    world = _world(policy, vip_flood(until_s, vip=2.0, standard=0.3))
    starts = sorted(
        job.granted_s
        for job in world.jobs
        if job.priority_class == "standard" and job.granted_s is not None and job.granted_s <= until_s
    )
    pauses = [later - earlier for earlier, later in zip([0.0, *starts], [*starts, until_s], strict=True)]
    row = {
        "scenario": "VIPs without end at twice the capacity, standard at a third of it",
        "requests": len(world.jobs),
        "standard_started": len(starts),
        "standard_longest_pause_s": max(pauses),
    }
    # 20 s is the default starvation bound; after it one dispatch in four is a promotion.
    return row, [Target("endless VIPs: longest time without a standard start, s", max(pauses), "<=", 25.0)]
