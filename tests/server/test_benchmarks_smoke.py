"""The policy benchmark keeps running, and its engine keeps to the rules of the simulator."""

from __future__ import annotations

import random

import pytest

from benchmarks import policies_burst, policies_cost, policies_fronts, policies_kv
from benchmarks.policies_engine import EventEngine
from benchmarks.policies_measures import jain, percentile
from benchmarks.policies_report import Target
from tidegate.testing.engine import EngineSimulator
from tidegate.testing.engine_values import EngineOptions

SMALL = EngineOptions(
    num_blocks=130,
    max_sequences=12,
    max_batched_tokens=512,
    max_model_tokens=1500,
    step_s=0.02,
    prefill_s_per_token=3e-5,
    decode_s_per_sequence=2e-5,
)
Requests = list[tuple[float, int, int, int]]


def _requests(seed: int) -> Requests:
    rng = random.Random(seed)
    at = 0.0
    requests: Requests = []
    for number in range(80):
        at += rng.expovariate(1.5)
        requests.append((at, number, rng.randint(100, 700), rng.randint(1, 500)))
    return requests


def _step_by_step(requests: Requests) -> tuple[dict[int, float], int]:
    engine = EngineSimulator(SMALL)
    ended: dict[int, float] = {}
    now, place = 0.0, 0
    while engine.has_work or place < len(requests):
        if not engine.has_work:
            now = max(now, requests[place][0])
        while place < len(requests) and requests[place][0] <= now:
            _, number, prompt, output = requests[place]
            engine.submit(number, prompt_tokens=prompt, output_tokens=output)
            place += 1
        report = engine.step(now)
        now = report.ends_at_s
        for finished in report.finished:
            assert isinstance(finished, int)
            ended[finished] = now
    return ended, engine.stats().preemptions


def _event_by_event(requests: Requests) -> tuple[dict[int, float], int]:
    engine = EventEngine(SMALL)
    ended: dict[int, float] = {}
    place = 0
    while engine.has_work or place < len(requests):
        due = requests[place][0] if place < len(requests) else float("inf")
        if not engine.has_work:
            engine.now_s = max(engine.now_s, due)
        if engine.now_s >= due:
            _, number, prompt, output = requests[place]
            engine.submit(number, prompt, output)
            place += 1
            continue
        for finished in engine.advance(due):
            ended[finished] = engine.now_s
    return ended, engine.preemptions


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_event_engine_agrees_with_the_simulator(seed: int) -> None:
    """Same requests, same instants of completion, same preemptions."""
    requests = _requests(seed)
    slow, slow_preemptions = _step_by_step(requests)
    fast, fast_preemptions = _event_by_event(requests)
    assert fast_preemptions == slow_preemptions > 0
    assert fast == pytest.approx(slow, abs=1e-3)


def test_projected_peak_counts_a_shared_prefix_once() -> None:
    """Two answers of 10 and 20 tokens on one prefix of 100."""
    alone = policies_fronts.projected_peak([(10, 150, None, 0), (20, 150, None, 0)], 0)
    shared = policies_fronts.projected_peak([(10, 150, "p", 100), (20, 150, "p", 100)], 0)
    assert alone == 320
    assert shared == alone - 100


def test_measures() -> None:
    """Jain's index at its ends, a percentile, and a target that is not a number."""
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert percentile([5, 1, 3], 0.5) == 3
    assert not Target("x", float("nan"), "<=", 1.0).met


@pytest.mark.parametrize("policy", ["none", "fixed cap", "reservation", "tidegate"])
def test_a_kv_scenario_runs_with_every_policy(policy: str) -> None:
    """A short load is answered, and the gate does not let the engine preempt more than nothing does."""
    scenario = policies_kv.SCENARIOS[1]
    row = policies_kv.run(scenario, policy, 70.0)
    assert row["completed"] > 50
    if policy == "tidegate":
        assert row["preemptions_per_1000"] < 20


def test_a_burst_is_answered_in_few_attempts() -> None:
    """Everybody succeeds within three tries where a constant Retry-After loses most."""
    burst = policies_burst.Burst("small", 200, max_attempts=3)
    assert policies_burst.run(burst, "tidegate", 1)["success"] > 0.95
    assert policies_burst.run(burst, "cap, Retry-After 1", 1)["success"] < 0.5


def test_costs_are_measured() -> None:
    """Percentiles and memory come out; no figure is judged here, the machine may be busy."""
    row = policies_cost.decision_times(200, samples=50)
    assert 150 <= row["leases"] <= 250
    assert row["offer_p50_us"] > 0
    assert policies_cost.memory_per_waiter(500) > 0
