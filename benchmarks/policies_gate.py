"""Drives the real admission core as one of the policies.

Law of this file: nothing is decided and nothing is added; a job becomes an `Ask`, a `Step` becomes effects,
as the HTTP shell would do it. The prompt is an estimate, lengths are unknown unless declared.
"""

from __future__ import annotations

import random

from benchmarks.policies_engine import EventEngine
from benchmarks.policies_world import Effects, Job
from tidegate.core.decisions import Admit, Ask, Ending, Refuse, Settlement, Step
from tidegate.core.gate import Gate
from tidegate.core.options import GateOptions
from tidegate.core.reading import Reading


class GateFront:
    """The core behind the `Front` protocol."""

    def __init__(
        self,
        options: GateOptions | None = None,
        *,
        seed: int = 0,
        keyed: bool = True,
        streamed: bool = True,
    ) -> None:
        self.gate = Gate(options or GateOptions(), 0.0)
        self.keyed = (
            keyed  # clients send an Idempotency-Key; else a digest on a declared retry, as stock SDKs
        )
        self.streamed = streamed
        self._uniform = random.Random(seed).random

    def offer(self, job: Job, now: float) -> Effects:
        known = self.keyed or job.attempts > 1
        ask = Ask(
            ticket=job.id,
            tenant=job.tenant,
            priority_class=job.priority_class,
            prompt_tokens=job.prompt_estimate,
            max_output_tokens=job.max_tokens,
            length_key=("model", job.tenant),
            streams=self.streamed,
            body_bytes=4 * job.prompt,
            identity=f"request-{job.id}" if known else None,
            digest=b"%d" % job.id,
            is_keyed=self.keyed,
            attempt=job.attempts,
        )
        return self._effects(self.gate.offer(ask, now, self._uniform))

    def finish(self, job: Job, now: float) -> Effects:
        settlement = Settlement(
            ending=Ending.COMPLETED,
            prompt_tokens=job.prompt,
            output_tokens=job.output,
            finished_by_length=job.output == job.max_tokens,
        )
        return self._effects(self.gate.release(job.id, settlement, now, self._uniform))

    def observe(self, reading: Reading, now: float) -> Effects:
        return self._effects(self.gate.observe([reading], now, self._uniform))

    def probe_failed(self, now: float) -> Effects:
        return self._effects(self.gate.probe_failed("default", now, self._uniform))

    def first_token(self, ticket: int, now: float) -> None:
        self.gate.progress(ticket, 1, now)

    def sweep(self, engine: EventEngine, now: float) -> Effects:
        for ticket, tokens in engine.outputs():
            if tokens > 0:
                self.gate.progress(ticket, tokens, now)
        return Effects()

    def wake(self, now: float) -> Effects:
        return self._effects(self.gate.advance(now, self._uniform))

    def _effects(self, step: Step) -> Effects:
        effects = Effects(wake_at=step.wake_at, wants_reading=step.wants_reading)
        decisions = [step.decision] if step.decision is not None else []
        for decision in (*decisions, *step.grants, *step.refusals):
            if isinstance(decision, Admit):
                effects.starts.append(decision.ticket)
            elif isinstance(decision, Refuse):
                effects.refusals.append((decision.ticket, decision.retry_after_s))
        return effects
