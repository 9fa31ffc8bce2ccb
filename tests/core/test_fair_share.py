"""Fairness in scenarios, against an oracle that knows nothing of counters or queues."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass

import pytest

from tests.core.driver import Driver
from tidegate.core.decisions import Admit, Queued
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, QueueOptions, TenantLimits

SLOTS = 8
TOKEN_S = 0.01


@dataclass(frozen=True)
class Client:
    """A tenant: how many requests it always keeps waiting, or how many it sends a second."""

    weight: float = 1.0
    backlog: int = 0
    per_s: float = 0.0
    prompt: int = 100
    output: int = 100
    from_s: float = 0.0


def max_min(capacity: float, demands: dict[str, float], weights: dict[str, float]) -> dict[str, float]:
    """Weighted max-min fair shares by progressive filling: nobody gets more than it asks for."""
    shares: dict[str, float] = {}
    left, open_names = capacity, set(demands)
    while open_names:
        level = left / sum(weights[name] for name in open_names)
        content = {name for name in open_names if demands[name] <= level * weights[name] + 1e-9}
        if not content:
            return {**shares, **{name: level * weights[name] for name in open_names}}
        for name in content:
            shares[name] = demands[name]
            left -= demands[name]
        open_names -= content
    return shares


def test_the_oracle_itself() -> None:
    """Who asks for little gets it; the rest is shared by weight."""
    shares = max_min(100, {"a": 10, "b": 1000, "c": 1000}, {"a": 1, "b": 1, "c": 2})
    assert shares == pytest.approx({"a": 10, "b": 30, "c": 60})
    assert max_min(100, {"a": 10, "b": 20}, {"a": 1, "b": 1}) == pytest.approx({"a": 10, "b": 20})


class Scenario:
    """Clients before an engine of eight slots; counts weighted tokens as they are finished."""

    def __init__(self, clients: dict[str, Client], seed: int = 3) -> None:
        self.clients = clients
        self.rng = random.Random(seed)
        limits = {
            name: TenantLimits(weight=client.weight, max_queued=500) for name, client in clients.items()
        }
        self.driver = Driver(
            GateOptions(
                kv=KvOptions(capacity_tokens=10**7, max_sequences=SLOTS),
                queue=QueueOptions(max_requests=5000),
                classes=(ClassOptions(name="standard", max_wait_s=1e6, max_queued=5000),),
                tenants=limits,
            ),
            now=0.0,
        )
        self.owner: dict[int, str] = {}
        self.waiting: dict[str, int] = defaultdict(int)
        self.served: dict[str, float] = defaultdict(float)
        self.events: list[tuple[float, int, str]] = []

    def run(self, until_s: float, count_from_s: float = 0.0) -> dict[str, float]:
        """Weighted tokens of each client's answers that ended within the window."""
        for name, client in self.clients.items():
            heapq.heappush(self.events, (client.from_s, -1, name))
        while self.events and self.events[0][0] < until_s:
            at, ticket, name = heapq.heappop(self.events)
            self.driver.now = max(self.driver.now, at)
            if ticket >= 0:
                client = self.clients[name]
                if at >= count_from_s:
                    self.served[name] += client.prompt + 2 * client.output
                started = self.driver.release(
                    ticket, prompt_tokens=client.prompt, output_tokens=client.output
                )
                self._start(started)
            elif self.clients[name].per_s:
                self._offer(name)
                gap_s = self.rng.expovariate(self.clients[name].per_s)
                heapq.heappush(self.events, (at + gap_s, -1, name))
            self._fill_up(at)
        return dict(self.served)

    def _fill_up(self, now: float) -> None:
        for name, client in self.clients.items():
            while client.from_s <= now and self.waiting[name] < client.backlog:
                self._offer(name)

    def _offer(self, name: str) -> None:
        client = self.clients[name]
        decision = self.driver.offer(
            name, prompt_tokens=client.prompt, max_output_tokens=client.output, length_key=name
        )
        self.owner[decision.ticket] = name
        if isinstance(decision, Queued):
            self.waiting[name] += 1
        elif isinstance(decision, Admit):
            self._schedule(decision.ticket)

    def _start(self, tickets: list[int]) -> None:
        for ticket in tickets:
            self.waiting[self.owner[ticket]] -= 1
            self._schedule(ticket)

    def _schedule(self, ticket: int) -> None:
        name = self.owner[ticket]
        ends_at = self.driver.now + self.clients[name].output * TOKEN_S
        heapq.heappush(self.events, (ends_at, ticket, name))


def jain(values: list[float]) -> float:
    """1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


SCENARIOS = {
    "equal": {"a": Client(backlog=9), "b": Client(backlog=9), "c": Client(backlog=9)},
    "one floods": {"a": Client(backlog=200), "b": Client(backlog=4), "c": Client(backlog=4)},
    "weights": {"a": Client(backlog=9, weight=1), "b": Client(backlog=9, weight=3)},
    "sizes": {
        "long answers": Client(backlog=9, output=400),
        "short answers": Client(backlog=30, output=40),
        "long prompts": Client(backlog=9, prompt=2000),
    },
    "one asks for little": {"light": Client(per_s=0.5), "b": Client(backlog=20), "c": Client(backlog=20)},
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_shares_are_those_of_the_oracle(name: str) -> None:
    """Weighted tokens per tenant come within a few percent of max-min fairness."""
    clients = SCENARIOS[name]
    until_s = 300.0
    served = Scenario(clients).run(until_s, count_from_s=20.0)
    demands = {
        tenant: (
            client.per_s * (until_s - 20.0) * (client.prompt + 2 * client.output) if client.per_s else 1e12
        )
        for tenant, client in clients.items()
    }
    weights = {tenant: client.weight for tenant, client in clients.items()}
    fair = max_min(sum(served.values()), demands, weights)
    for tenant, share in fair.items():
        tolerance = 0.2 if clients[tenant].per_s else 0.06  # its arrivals are random
        assert served[tenant] == pytest.approx(share, rel=tolerance), tenant


def test_jain_index_of_equal_backlogged_tenants() -> None:
    """At least 0.99, though one of them asks ten times as loudly."""
    clients = {f"t{number}": Client(backlog=100 if number == 0 else 10) for number in range(6)}
    served = Scenario(clients).run(400.0)
    assert jain(list(served.values())) >= 0.99


def test_idle_time_is_no_credit() -> None:
    """Who comes back after a long pause gets its share from then on, and no more."""
    clients = {"steady": Client(backlog=9), "late": Client(backlog=9, from_s=200.0)}
    served = Scenario(clients).run(260.0, count_from_s=205.0)
    assert served["late"] == pytest.approx(served["steady"], rel=0.15)


def test_settlement_corrects_wrong_predictions() -> None:
    """Declaring a huge maximum and using little costs no turn in the end; the books follow what was used."""
    clients = {"honest": Client(backlog=9), "other": Client(backlog=9)}
    scenario = Scenario(clients)
    scenario.run(100.0)
    counters = [
        flow.counter for tenant in scenario.driver.gate._books.tenants.all() for flow in tenant.flows.values()
    ]
    assert max(counters) - min(counters) <= 2 * SLOTS * 300
