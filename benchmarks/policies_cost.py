"""What the core itself costs: time per decision, memory per waiter and per remembered tenant.

Law of this file: processor time of one thread, garbage collection on, percentiles over single
operations; sizes by `tracemalloc`, so allocator slack is not in them.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.policies_measures import percentile
from benchmarks.policies_report import Target
from tidegate.core.decisions import Ask, Ending, Settlement
from tidegate.core.gate import Gate
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, QueueOptions, TenantLimits
from tidegate.core.reading import Reading

LEASES = 200
TENANTS = 100
CAPACITY = 214_000  # 200 leases of 400 + 600 tokens fit, beside the margin
SAMPLES = 3000
ANSWERED = Settlement(ending=Ending.COMPLETED, prompt_tokens=400, output_tokens=600, finished_by_length=True)


def _options(max_tenants: int = 10_000) -> GateOptions:
    room = 300_000
    return GateOptions(
        kv=KvOptions(capacity_tokens=CAPACITY),
        queue=QueueOptions(max_requests=room),
        classes=(ClassOptions(name="standard", max_queued=room, max_wait_s=1e6),),
        default_tenant=TenantLimits(max_queued=room),
        max_tenants=max_tenants,
    )


class _Driver:
    """A gate at work: `LEASES` running, `waiting` queued, time standing almost still."""

    def __init__(self, waiting: int) -> None:
        self.uniform = random.Random(7).random
        self.now = 0.0
        self.tickets = 0
        self.running: list[int] = []
        self.gate = Gate(_options(), 0.0)
        for _ in range(2 * LEASES + waiting):
            if self.tickets % 100 == 0:
                self.read()
            self.offer()

    def read(self) -> None:
        """A level that agrees with the ledger: prompts are there, no answer has grown yet."""
        running = len(self.running)
        level = running * 400 / CAPACITY
        reading = Reading(kv_usage=level, waiting=0, running=running, capacity_tokens=CAPACITY)
        self._take(self.gate.observe([reading], self.now, self.uniform).grants)

    def ask(self) -> Ask:
        self.tickets += 1
        return Ask(
            ticket=self.tickets,
            tenant=f"tenant-{self.tickets % TENANTS}",
            priority_class="standard",
            prompt_tokens=400.0,
            max_output_tokens=600,
            length_key=("model", self.tickets % TENANTS),
            digest=b"%d" % self.tickets,
        )

    def offer(self) -> None:
        step = self.gate.offer(self.ask(), self.now, self.uniform)
        if step.decision is not None and type(step.decision).__name__ == "Admit":
            self.running.append(step.decision.ticket)
        self._take(step.grants)

    def release(self) -> None:
        ticket = self.running.pop(0)
        self._take(self.gate.release(ticket, ANSWERED, self.now, self.uniform).grants)

    def cancel_newest(self) -> None:
        self._take(self.gate.cancel(self.tickets, self.now, self.uniform).grants)

    def _take(self, grants: Any) -> None:
        self.running += [grant.ticket for grant in grants]

    def timed(self, action: Callable[[], object]) -> float:
        """Microseconds of one call; the clock moves on by a millisecond first."""
        self.now += 0.001
        began = time.thread_time_ns()
        action()
        return (time.thread_time_ns() - began) / 1000


def decision_times(waiting: int, samples: int = SAMPLES) -> dict[str, Any]:
    """Percentiles of `offer` (which queues), `cancel` and `release` (which starts the next), microseconds."""
    driver = _Driver(waiting)
    gc.collect()
    gc.freeze()
    offers, cancels, releases = [], [], []
    for number in range(samples):
        offers.append(driver.timed(driver.offer))
        cancels.append(driver.timed(driver.cancel_newest))
        if number % 10 == 0:
            releases.append(driver.timed(driver.release))
        if number % 100 == 0:
            driver.read()
    gc.unfreeze()
    row: dict[str, Any] = {"scenario": "one decision", "waiting": waiting, "leases": len(driver.running)}
    for name, times in (("offer", offers), ("cancel", cancels), ("release", releases)):
        row |= {f"{name}_p50_us": percentile(times, 0.5), f"{name}_p99_us": percentile(times, 0.99)}
    return row


def at_once_times(samples: int = SAMPLES) -> dict[str, Any]:
    """Percentiles of `offer` (which starts at once) and `release` while nobody waits, and of a reading."""
    driver = _Driver(0)
    gate = driver.gate = Gate(replace(_options(), kv=KvOptions(capacity_tokens=5 * CAPACITY)), 0.0)
    driver.running.clear()
    driver.read()
    for _ in range(LEASES):
        driver.offer()
        gate.progress(driver.tickets, 1.0, driver.now)
    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {"offer": [], "release": [], "observe": [], "statistics": []}
    for number in range(samples):
        times["offer"].append(driver.timed(driver.offer))
        gate.progress(driver.tickets, 1.0, driver.now)
        times["release"].append(driver.timed(driver.release))
        if number % 100 == 0:
            times["observe"].append(driver.timed(driver.read))
            times["statistics"].append(driver.timed(lambda: gate.statistics(driver.now)))
    gc.unfreeze()
    row: dict[str, Any] = {"scenario": "nobody waits", "leases": len(driver.running)}
    return row | {f"{name}_p50_us": percentile(taken, 0.5) for name, taken in times.items()}


def memory_per_waiter(waiting: int) -> float:
    """Bytes that one queued request keeps alive in the core, its `Ask` included."""
    driver = _Driver(0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(waiting):
        driver.offer()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown / waiting


def tenants(distinct: int, bound: int) -> dict[str, Any]:
    """Memory after many tenants came once each and left, and what one remembered tenant costs."""
    uniform = random.Random(9).random
    gate = Gate(_options(max_tenants=bound), 0.0)
    gate.observe([Reading(kv_usage=0.0, capacity_tokens=CAPACITY)], 0.0, uniform)
    gc.collect()
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    sizes: dict[int, int] = {}
    for number in range(distinct):
        now = number * 0.001
        ask = Ask(
            ticket=number,
            tenant=f"tenant-{number}",
            priority_class="standard",
            prompt_tokens=100.0,
            max_output_tokens=100,
            length_key=("model", f"tenant-{number}"),
        )
        gate.offer(ask, now, uniform)
        gate.release(number, ANSWERED, now, uniform)
        if number + 1 in (bound, distinct):
            gc.collect()
            sizes[number + 1] = tracemalloc.get_traced_memory()[0] - base
    tracemalloc.stop()
    return {
        "scenario": "distinct tenants",
        "tenants": distinct,
        "bound": bound,
        "bytes_per_remembered_tenant": sizes[bound] / bound,
        "bytes_at_bound": sizes[bound],
        "bytes_at_end": sizes[distinct],
    }


def run_all(*, full: bool) -> tuple[list[dict[str, Any]], list[Target]]:
    """All of it; rows and targets."""
    few, many, none = decision_times(1000), decision_times(100_000), at_once_times()
    waiter = {"scenario": "memory of one waiter", "bytes": memory_per_waiter(20_000)}
    crowd = tenants(1_000_000 if full else 100_000, 10_000)
    targets = []
    for name in ("offer", "release"):
        ratio = many[f"{name}_p50_us"] / few[f"{name}_p50_us"]
        targets.append(Target(f"{name} with 100,000 waiting over 1,000 waiting, p50", ratio, "<=", 2.0))
        targets.append(Target(f"{name} at 200 leases, p50, microseconds", few[f"{name}_p50_us"], "<=", 50.0))
        at_once = f"{name} at 200 leases while nobody waits, p50, microseconds"
        targets.append(Target(at_once, none[f"{name}_p50_us"], "<=", 50.0))
    growth = crowd["bytes_at_end"] / crowd["bytes_at_bound"]
    targets.append(
        Target(f"memory after {crowd['tenants']:,} tenants over that at the bound", growth, "<=", 1.2)
    )
    return [few, many, none, waiter, crowd], targets
