"""Random operations in random order; the invariants hold after every one of them."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.invariants import Watch
from tidegate.core.decisions import Ask, Ending, Settlement, Step
from tidegate.core.gate import Gate
from tidegate.core.options import (
    ClassOptions,
    GateOptions,
    KvOptions,
    OnBlind,
    QueueOptions,
    SignalOptions,
    TenantLimits,
)
from tidegate.core.reading import Reading

CLASSES = (
    ClassOptions(name="vip", kv_ceiling=1.0, max_wait_s=8.0, max_queued=6, weight=4.0),
    ClassOptions(name="standard", kv_ceiling=0.9, max_wait_s=6.0, max_queued=8, weight=2.0, starvation_s=2.0),
    ClassOptions(name="batch", kv_ceiling=0.7, max_wait_s=20.0, max_queued=5, weight=1.0),
)
TENANTS = {
    "free": TenantLimits(),
    "capped": TenantLimits(max_concurrency=2, max_queued=4, weight=2.0),
    "metered": TenantLimits(requests_per_s=1.0, request_burst=3.0, tokens_per_s=200.0, token_burst=1500.0),
}


class GateMachine(RuleBasedStateMachine):
    """One gate under every operation there is."""

    gate: Gate
    watch: Watch
    step: Step
    now: float

    @initialize(
        seed=st.integers(0, 2**16),
        capacity=st.sampled_from([None, 600, 4000]),
        on_blind=st.sampled_from(["local", "open", "closed"]),
        high=st.sampled_from([None, 0.8]),
        context=st.sampled_from([None, 300]),
    )
    def build(
        self, seed: int, capacity: int | None, on_blind: OnBlind, high: float | None, context: int | None
    ) -> None:
        """A gate with small bounds, so that every one of them bites."""
        self.uniform = random.Random(seed).random
        self.now = 100.0
        self.ticket = 0
        self.totals = {"generation": 0.0, "prompt": 0.0, "preemptions": 0.0}
        self.capacity = capacity
        options = GateOptions(
            kv=KvOptions(
                capacity_tokens=capacity, high_watermark=high, max_sequences=12, max_model_tokens=context
            ),
            queue=QueueOptions(max_requests=12, max_bytes=2000),
            classes=CLASSES,
            tenants=TENANTS,
            signal=SignalOptions(on_blind=on_blind, blind_concurrency=3),
            max_tenants=5,
        )
        self.gate = Gate(options, self.now)
        self.watch = Watch(self.gate)
        self.step = self.watch.take(self.gate.advance(self.now, self.uniform))

    @rule(
        tenant=st.sampled_from(["free", "capped", "metered", "a", "b", "c", "d"]),
        priority_class=st.sampled_from(["vip", "standard", "batch"]),
        prompt=st.sampled_from([0, 1, 40, 150, 500, 3000]),
        most=st.sampled_from([None, 0, 1, 60, 400, 64_000]),
        sequences=st.sampled_from([1, 1, 1, 2, 5, 40]),
        generates=st.sampled_from([True, True, True, False]),
        streams=st.booleans(),
        wait_s=st.sampled_from([None, -1.0, 0.0, 0.5, 5.0]),
        name=st.sampled_from([None, "k1", "k2"]),
        attempt=st.sampled_from([1, 2]),
        session=st.sampled_from([None, "s"]),
    )
    def offer(
        self, wait_s: float | None, name: str | None, prompt: int, most: int | None, **ask: Any
    ) -> None:
        """A request arrives."""
        self.ticket += 1
        self.step = self.watch.take(
            self.gate.offer(
                Ask(
                    ticket=self.ticket,
                    prompt_tokens=prompt,
                    prompt_tokens_floor=prompt // 2,
                    max_output_tokens=most,
                    latest_start_at=None if wait_s is None else self.now + wait_s,
                    identity=name,
                    is_keyed=name is not None,
                    digest=b"body",
                    body_bytes=prompt,
                    length_key=ask["tenant"],
                    **ask,
                ),
                self.now,
                self.uniform,
            ),
            offered=self.ticket,
        )

    @rule(tenant=st.sampled_from(["free", "metered"]), priority_class=st.sampled_from(["vip", "batch"]))
    def precheck(self, tenant: str, priority_class: str) -> None:
        """Only the head of a request has arrived."""
        before = self.gate.statistics(self.now)
        refusal = self.gate.precheck(tenant, priority_class, self.now, self.uniform)
        after = self.gate.statistics(self.now)
        assert (before.queued, before.running) == (after.queued, after.running)
        assert refusal is None or (refusal.ticket == 0 and refusal.retry_after_s is not None)

    @rule(index=st.integers(0, 30))
    def cancel(self, index: int) -> None:
        """A caller leaves: one that waits, one that runs, or one long gone."""
        known = sorted(self.watch.waiting | self.watch.running | {999_999})
        ticket = known[index % len(known)]
        self.watch.waiting.discard(ticket)
        self.watch.running.discard(ticket)
        self.watch.ended.add(ticket)
        self.step = self.watch.take(self.gate.cancel(ticket, self.now, self.uniform))

    @rule(index=st.integers(0, 30), ending=st.sampled_from(Ending), used=st.sampled_from([None, 0, 7, 900]))
    def release(self, index: int, ending: Ending, used: int | None) -> None:
        """A lease ends, and is told to end twice."""
        known = sorted(self.watch.running | {999_999})
        ticket = known[index % len(known)]
        self.watch.running.discard(ticket)
        self.watch.ended.add(ticket)
        settlement = Settlement(ending=ending, prompt_tokens=used, output_tokens=used)
        self.watch.take(self.gate.release(ticket, settlement, self.now, self.uniform))
        self.step = self.watch.take(self.gate.release(ticket, settlement, self.now, self.uniform))

    @precondition(lambda self: self.watch.running)
    @rule(index=st.integers(0, 30), tokens=st.sampled_from([0, 1, 30, 500]))
    def progress(self, index: int, tokens: int) -> None:
        """A stream moves on; the next step may use what that changed."""
        running = sorted(self.watch.running)
        self.gate.progress(running[index % len(running)], tokens, self.now)
        self.step = self.watch.take(self.gate.advance(self.now, self.uniform))

    @precondition(lambda self: self.watch.running)
    @rule(index=st.integers(0, 30), what=st.sampled_from(["gone", "blocked", "unblocked"]))
    def tell(self, index: int, what: str) -> None:
        """A caller's socket goes, or stops draining."""
        running = sorted(self.watch.running)
        ticket = running[index % len(running)]
        if what == "gone":
            self.gate.caller_gone(ticket, self.now)
        else:
            self.gate.sending_blocked(ticket, what == "blocked", self.now)
        self.step = self.watch.take(self.gate.advance(self.now, self.uniform))

    @rule(
        usage=st.sampled_from([None, 0.0, 0.3, 0.9, 1.0]),
        waiting=st.sampled_from([None, 0, 5]),
        foreign=st.sampled_from([0, 0, 4]),
        states_capacity=st.booleans(),
        preempted=st.sampled_from([0, 0, 2]),
        asleep=st.sampled_from([False] * 7 + [True]),
        instance=st.sampled_from(["default", "default", "other"]),
    )
    def observe(
        self,
        usage: float | None,
        waiting: int | None,
        foreign: int,
        states_capacity: bool,
        preempted: int,
        asleep: bool,
        instance: str,
    ) -> None:
        """The probe reads something."""
        self.totals["preemptions"] += preempted
        self.totals["generation"] += 50
        reading = Reading(
            kv_usage=usage,
            waiting=waiting,
            running=len(self.watch.running) + foreign,
            capacity_tokens=2000 if states_capacity else None,
            preemptions=self.totals["preemptions"],
            generation_tokens=self.totals["generation"],
            prompt_tokens=self.totals["prompt"],
            asleep=asleep,
            instance=instance,
        )
        self.step = self.watch.take(self.gate.observe([reading], self.now, self.uniform))

    @rule(elapsed_s=st.sampled_from([-5.0, 0.0, 0.01, 0.3, 1.0, 4.0, 30.0]))
    def advance(self, elapsed_s: float) -> None:
        """Time passes, stands still, or goes backwards."""
        before = self.now
        self.step = self.watch.take(self.gate.advance(self.now + elapsed_s, self.uniform))
        self.now = max(before, self.now + elapsed_s)

    @rule()
    def wake(self) -> None:
        """The shell calls at the instant it was told."""
        if self.step.wake_at is not None:
            self.now = max(self.now, self.step.wake_at)
            self.step = self.watch.take(self.gate.advance(self.now, self.uniform))

    @invariant()
    def holds(self) -> None:
        """The four invariants, and that a step leaves nothing undone."""
        if hasattr(self, "watch"):
            self.watch.check(self.step, self.now)
            self.watch.take(again := self.gate.advance(self.now, self.uniform))
            assert not again.grants, "a step left somebody behind who could have started"
            assert not again.refusals
            if again.wake_at is not None:
                self.step = again


GateMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,  # a check that comes and goes helps nobody; scripts/planted_bugs.py shows that it bites
    suppress_health_check=list(HealthCheck),
)
TestGate = GateMachine.TestCase
