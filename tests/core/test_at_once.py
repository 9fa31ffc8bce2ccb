"""A request that starts at once takes no seat; nothing else may tell it from one that took one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.driver import Driver, wide
from tidegate.core.cycle import Cycle
from tidegate.core.decisions import Admit, Ask, Ending, Queued, Settlement, Step
from tidegate.core.fair_queue import FairQueue
from tidegate.core.gate import Gate
from tidegate.core.line import Waiter
from tidegate.core.options import (
    ClassOptions,
    GateOptions,
    KvOptions,
    QueueOptions,
    SignalOptions,
    TenantLimits,
)
from tidegate.core.reading import Reading

OPTIONS = GateOptions(
    kv=KvOptions(capacity_tokens=3000),
    queue=QueueOptions(max_requests=1000),
    classes=(
        ClassOptions(name="vip", max_wait_s=8.0, weight=4.0),
        ClassOptions(name="standard", kv_ceiling=0.9, max_wait_s=6.0, weight=2.0, starvation_s=2.0),
        ClassOptions(name="batch", kv_ceiling=0.7, max_wait_s=20.0, weight=1.0),
    ),
    tenants={
        "capped": TenantLimits(max_concurrency=2, weight=2.0),
        "metered": TenantLimits(requests_per_s=2.0, tokens_per_s=400.0, token_burst=3000.0),
    },
    signal=SignalOptions(blind_concurrency=3),
)


class Twins:
    """The same gate twice, one of which seats everybody; every answer of both must be equal."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.tickets = 0
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.read = Reading(kv_usage=0.2, waiting=0, running=0)
        self.pair = [(Gate(OPTIONS, self.now), random.Random(seed + 1).random) for _ in range(2)]
        self.pair[1][0]._cycle.start_at_once = lambda *_: None  # type: ignore[method-assign]

    def both(self, name: str, *arguments: object) -> None:
        """One operation on both, and what it says."""
        steps = [getattr(gate, name)(*arguments, self.now, uniform) for gate, uniform in self.pair]
        assert steps[0] == steps[1]
        step: Step = steps[0]
        self.running += [admit.ticket for admit in step.grants]
        if isinstance(step.decision, Admit):
            self.running.append(step.decision.ticket)
        if isinstance(step.decision, Queued):
            self.waiting.append(step.decision.ticket)
        gone = {admit.ticket for admit in step.grants} | {refusal.ticket for refusal in step.refusals}
        self.waiting = [ticket for ticket in self.waiting if ticket not in gone]

    def offer(self) -> None:
        """A request of any kind."""
        self.tickets += 1
        choice = self.rng.choice
        ask = Ask(
            ticket=self.tickets,
            tenant=choice(["capped", "metered", "a", "b"]),
            priority_class=choice(["vip", "standard", "standard", "batch"]),
            prompt_tokens=choice([1, 40, 150, 500]),
            max_output_tokens=choice([None, 20, 60, 400]),
            sequences=choice([1, 1, 2]),
            generates=choice([True, True, True, False]),
            length_key=choice(["x", "y"]),
            identity=choice([None, None, "k"]),
            attempt=choice([1, 1, 2]),
            digest=b"d",
            end_user=choice([None, None, None, "u", "v"]),
            streams=choice([True, False]),
        )
        self.both("offer", ask)

    def end(self) -> None:
        """A lease ends."""
        if self.running:
            ticket = self.running.pop(self.rng.randrange(len(self.running)))
            used = self.rng.choice([None, 20, 300])
            self.both("release", ticket, Settlement(ending=Ending.COMPLETED, output_tokens=used))

    def grow(self) -> None:
        """Streams move on."""
        for ticket in self.running:
            tokens = self.rng.randrange(60)
            for gate, _ in self.pair:
                gate.progress(ticket, tokens, self.now)

    def leave(self) -> None:
        """A waiter's caller leaves."""
        if self.waiting:
            self.both("cancel", self.waiting.pop())

    def tick(self) -> None:
        """Time passes, with or without a reading."""
        self.now += self.rng.choice([0.01, 0.3, 2.0])
        if self.rng.random() < 0.7:
            self.both("observe", [self.read])
        else:
            self.both("advance")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**16))
def test_short_cut_leaves_the_same_books_as_a_seat(seed: int) -> None:
    """Same answers, same counters, same statistics, whatever came before and comes after."""
    twins = Twins(seed)
    moves = [twins.offer, twins.offer, twins.end, twins.end, twins.grow, twins.leave, twins.tick]
    for _ in range(80):
        twins.rng.choice(moves)()
        (short, _), (long, _) = twins.pair
        assert short.statistics(twins.now) == long.statistics(twins.now)
        bands = zip(short._books.queue.bands, long._books.queue.bands, strict=True)
        assert all(one.served_at == other.served_at for one, other in bands)
    assert twins.tickets


def test_short_cut_is_taken_when_nobody_waits_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seat for who starts at once; whoever finds others waiting takes one and its turn."""
    seated: list[int] = []
    push = FairQueue.push

    def watched(queue: FairQueue, waiter: Waiter) -> None:
        seated.append(waiter.ask.ticket)
        push(queue, waiter)

    monkeypatch.setattr(FairQueue, "push", watched)
    driver = Driver(wide())
    driver.read(0.0)
    first = driver.admit()
    assert seated == []
    driver.queue(prompt_tokens=900)
    driver.queue()
    assert len(seated) == 2
    assert driver.release(first.ticket) != []


def test_idle_gate_plans_no_look_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody waits a release ends in an empty step, without a look at the queue."""
    driver = Driver(wide())
    driver.read(0.0)
    ticket = driver.admit().ticket
    monkeypatch.setattr(Cycle, "_dispatch", lambda *_: pytest.fail("nobody waits"))
    assert driver.release(ticket) == []
    assert driver.step == Step()
