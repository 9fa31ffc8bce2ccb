"""Scenarios about being refused: a burst many times what can be held, and clients that come back.

Law of this file: 32 slots, four seconds of service on average, a queue of 32, everybody within 0.2 s; a
client comes back after exactly what it was told (or by its own back-off where nobody tells it anything).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.policies_engine import EventEngine
from benchmarks.policies_fronts import Advice, Cap, constant_second, full_jitter
from benchmarks.policies_gate import GateFront
from benchmarks.policies_measures import percentile
from benchmarks.policies_report import Target
from benchmarks.policies_workloads import SLOTS, make_job, merge, poisson, slots
from benchmarks.policies_world import Front, World
from tidegate.core.options import ClassOptions, GateOptions, QueueOptions, TenantLimits

SLOTS_AND_QUEUE = 64
LIGHT_RATE_PER_S = 1.0
LIGHT_S = 60.0


def _cap(advice: Advice) -> Callable[[bool], Front]:
    return lambda _: Cap(32, seats=32, advice=advice, classes=("standard",), seed=1)


def _gate(keyed: bool) -> Front:
    options = GateOptions(
        queue=QueueOptions(max_requests=32),
        classes=(ClassOptions(name="standard", max_queued=32),),
        default_tenant=TenantLimits(max_queued=32),
    )
    return GateFront(options, seed=1, keyed=keyed)


POLICIES: dict[str, Callable[[bool], Front]] = {
    "cap, Retry-After 1": _cap(constant_second),
    "cap, full jitter": _cap(full_jitter),
    "tidegate": _gate,
}


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst."""

    name: str
    size: int
    after_light_load: bool = False
    max_attempts: int | None = None
    keyed: bool = True  # clients send an Idempotency-Key; else only a retry is declared
    speed_change: float = 1.0  # of a service time, ten seconds into the burst
    mean_tokens: int = 200  # 20 ms each


SCENARIOS = (
    Burst("10x burst, obedient clients", 10 * SLOTS_AND_QUEUE),
    Burst("10x burst, stock SDK headers, obedient", 10 * SLOTS_AND_QUEUE, keyed=False),
    Burst("burst of 1,000, obedient clients", 1000),
    Burst("burst of 400 from idle, three tries", 400, max_attempts=3),
    Burst("burst of 400 after light load, three tries", 400, after_light_load=True, max_attempts=3),
    Burst("burst of 400 from idle, three tries, stock SDK headers", 400, max_attempts=3, keyed=False),
    Burst("burst of 400, engine half as fast after 10 s", 400, speed_change=2.0),
    Burst("burst of 400, engine twice as fast after 10 s", 400, speed_change=0.5),
    Burst("burst of 128, answers of five minutes", 128, mean_tokens=15_000),
)


def run(burst: Burst, policy: str, seed: int) -> dict[str, Any]:
    """One policy, one seed."""
    rng = random.Random(seed)
    begins_s = LIGHT_S if burst.after_light_load else 0.0
    crowd = [
        make_job(
            number,
            begins_s + rng.uniform(0, 0.2),
            slots,
            rng,
            tenant=f"tenant-{number % 40}",
            max_attempts=burst.max_attempts,
        )
        for number in range(burst.size)
    ]
    for job in crowd:
        job.output = job.output * burst.mean_tokens // 200
    light = poisson(slots, LIGHT_RATE_PER_S, 0, begins_s, rng, declared=None, tenants=40, max_attempts=3)
    engine = EventEngine(replace(SLOTS, max_model_tokens=200_000))
    jobs = merge(light, crowd)
    world = World(engine=engine, front=POLICIES[policy](burst.keyed), jobs=jobs, sweep_s=0.5, until_s=20_000)
    if burst.speed_change != 1.0:
        world.speed_changes = [(begins_s + 10.0, SLOTS.step_s * burst.speed_change)]
    world.run()
    done = [job for job in crowd if job.finished_s is not None]
    ended_s = max((job.finished_s or 0.0 for job in done), default=0.0)
    ideal_s = sum(job.output for job in done) * SLOTS.step_s / 32
    return {
        "success": len(done) / burst.size,
        "attempts_per_success": sum(job.attempts for job in crowd) / max(1, len(done)),
        "attempts_most": max(job.attempts for job in crowd),
        "makespan_over_ideal": (ended_s - begins_s) / ideal_s,
        "response_p99_s": percentile([(job.finished_s or 0.0) - job.arrives_s for job in done], 0.99),
        "requests": len(jobs),
    }


def run_all(seeds: int, policies: list[str]) -> tuple[list[dict[str, Any]], list[Target]]:
    """Every burst, as means over seeds; our targets."""
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for burst in SCENARIOS:
        for policy in POLICIES:
            if policy != "tidegate" and (policies == ["tidegate"] or burst.mean_tokens > 200):
                continue  # a client that asks every second for hours teaches nothing
            results = [run(burst, policy, seed) for seed in range(1, seeds + 1)]
            row = {key: sum(result[key] for result in results) / seeds for key in results[0]}
            row["requests"] = sum(result["requests"] for result in results)
            rows.append({"scenario": burst.name, "policy": policy} | row)
            if policy == "tidegate":
                targets += _targets(burst, row)
    return rows, targets


def _targets(burst: Burst, row: dict[str, Any]) -> list[Target]:
    if burst.max_attempts is not None:
        return [Target(f"{burst.name}: share that succeeds", row["success"], ">=", 0.98)]
    if burst.size == 10 * SLOTS_AND_QUEUE:
        return [Target(f"{burst.name}: attempts per success", row["attempts_per_success"], "<=", 2.5)]
    return []
