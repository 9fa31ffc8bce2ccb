"""A gate with a hand on its clock: one line per event in a test."""

from __future__ import annotations

import itertools
from typing import Any

from tidegate.core.decisions import Admit, Ask, Decision, Ending, Queued, Refuse, Settlement, Step
from tidegate.core.gate import Gate
from tidegate.core.instance import Instance
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, QueueOptions, TenantLimits
from tidegate.core.reading import Reading


def half() -> float:
    """Randomness that is none."""
    return 0.5


def wide(**kv: Any) -> GateOptions:
    """Room for everybody, 1,000 tokens of KV, nothing learnt in the way."""
    settings: dict[str, Any] = {"capacity_tokens": 1000, "margin": 0.0, "margin_min": 0.0, "block_tokens": 1}
    return GateOptions(
        kv=KvOptions(**{**settings, "high_watermark": 1.0, **kv}),
        queue=QueueOptions(max_requests=1000),
        classes=(
            ClassOptions(name="vip", max_wait_s=60.0, weight=4.0),
            ClassOptions(name="standard", max_wait_s=60.0, weight=2.0, starvation_s=20.0),
            ClassOptions(name="batch", kv_ceiling=0.5, max_wait_s=60.0, weight=1.0, starvation_s=30.0),
        ),
    )


def small(**queue: Any) -> GateOptions:
    """One lease (of `FILL`, 90 of 100 tokens) at a time, and a small room."""
    return GateOptions(
        kv=KvOptions(capacity_tokens=100, margin=0.0, margin_min=0.0, high_watermark=1.0, block_tokens=1),
        queue=QueueOptions(**{"max_requests": 4, **queue}),
        classes=(
            ClassOptions(name="vip", max_wait_s=60.0),
            ClassOptions(name="standard", max_wait_s=60.0, starvation_s=50.0),
            ClassOptions(name="batch", max_wait_s=60.0, starvation_s=50.0),
        ),
        default_tenant=TenantLimits(max_queued=4),
    )


FILL: dict[str, Any] = {"prompt_tokens": 10, "max_output_tokens": 80}


class Driver:
    """Drives one gate; `step` is the last answer."""

    def __init__(self, options: GateOptions | None = None, now: float = 1000.0) -> None:
        self.now = now
        self.uniform = half
        self.gate = Gate(options or wide(), now)
        self.tickets = itertools.count(1)
        self.step = Step()

    def offer(self, tenant: str = "t", priority_class: str = "standard", **ask: Any) -> Decision:
        """Offer a request of 10 prompt tokens and exactly 90 output tokens unless told otherwise."""
        fields: dict[str, Any] = {"prompt_tokens": 10, "max_output_tokens": 90, **ask}
        fields.setdefault("ticket", next(self.tickets))
        self.step = self.gate.offer(
            Ask(tenant=tenant, priority_class=priority_class, **fields), self.now, self.uniform
        )
        assert self.step.decision is not None
        return self.step.decision

    def admit(self, *tenant: str, **ask: Any) -> Admit:
        """Offer, and expect it to start at once."""
        decision = self.offer(*tenant, **ask)
        assert isinstance(decision, Admit), decision
        return decision

    def queue(self, *tenant: str, **ask: Any) -> Queued:
        """Offer, and expect it to wait."""
        decision = self.offer(*tenant, **ask)
        assert isinstance(decision, Queued), decision
        return decision

    def refuse(self, *tenant: str, **ask: Any) -> Refuse:
        """Offer, and expect a refusal."""
        decision = self.offer(*tenant, **ask)
        assert isinstance(decision, Refuse), decision
        return decision

    def release(self, ticket: int, ending: Ending = Ending.COMPLETED, **used: Any) -> list[int]:
        """End a lease; the tickets that start instead."""
        self.step = self.gate.release(ticket, Settlement(ending=ending, **used), self.now, self.uniform)
        return [admit.ticket for admit in self.step.grants]

    def cancel(self, ticket: int) -> list[int]:
        """A caller leaves; the tickets that start instead."""
        self.step = self.gate.cancel(ticket, self.now, self.uniform)
        return [admit.ticket for admit in self.step.grants]

    def pass_s(self, elapsed_s: float) -> list[int]:
        """Time passes; the tickets that start."""
        self.now += elapsed_s
        self.step = self.gate.advance(self.now, self.uniform)
        return [admit.ticket for admit in self.step.grants]

    def read(self, kv_usage: float | None, **reading: Any) -> list[int]:
        """The probe reads; the tickets that start."""
        self.step = self.gate.observe([Reading(kv_usage=kv_usage, **reading)], self.now, self.uniform)
        return [admit.ticket for admit in self.step.grants]

    def progress(self, ticket: int, tokens: float) -> None:
        """A stream has shown so many tokens."""
        self.gate.progress(ticket, tokens, self.now)

    def predicted(self, admit: Admit) -> float:
        """Output tokens expected of a running request, all its sequences together."""
        lease = self.instance.ledger.leases[admit.ticket]
        return lease.predicted * lease.ask.sequences

    @property
    def instance(self) -> Instance:
        """The default engine instance."""
        return self.gate._books.pool.by_name["default"]
