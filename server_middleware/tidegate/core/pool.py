"""The engine instances behind one gate, and where a request may go.

Law of this file: an instance answers for itself. One that is hot takes its own share out, one that is
silent freezes nobody else, and one that has gone is charged with nothing more. Where the shell routes, its
choice is charged; where the engine's balancer chooses, the least loaded instance that fits is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.core import ranks
from tidegate.core.absent import Absence
from tidegate.core.decisions import Ask
from tidegate.core.instance import Instance
from tidegate.core.lengths import Kinds, LengthModel
from tidegate.core.occupancy import Demand
from tidegate.core.options import GateOptions
from tidegate.core.prompts import PromptSizes
from tidegate.core.reading import Reading
from tidegate.core.signal import State
from tidegate.core.verdict import Ceiling, Verdict
from tidegate.core.wide import ONE, Bounds, Spread, fitting, spread

DEFAULT = "default"
FORGET_AFTER = 10.0  # times `blind_after_s` without a reading or a lease
MAX_INSTANCES = 1024
_EASIER_FIRST = (
    Verdict.KV,
    Verdict.PREFILL,
    Verdict.SEQUENCES,
    Verdict.ENGINE_QUEUE,
    Verdict.BLIND,
    Verdict.LEVEL,
)


@dataclass(slots=True)
class Placement:
    """Where a request stands: free to start there, or what holds it."""

    verdict: Verdict
    instance: Instance
    demand: Demand
    quantile: float
    predicted: float  # output tokens per sequence, at this quantile
    prompt: float  # tokens, by what is known now
    share: float  # of those that is charged
    spread: Spread = ONE


class Pool:
    """Instances by name."""

    def __init__(self, options: GateOptions, lengths: LengthModel, prompts: PromptSizes) -> None:
        self._options = options
        self._lengths = lengths
        self._prompts = prompts
        self.by_name: dict[str, Instance] = {DEFAULT: Instance(DEFAULT, options)}
        self._may_be_shut = options.signal.on_blind == "closed"
        self._absence = Absence()
        self._spoken: list[Instance] | None = None  # those a reading has told of; `None`: look again
        self._plain_below = 0.0  # with `_spoken`: a prompt of fewer tokens at least meets no obstacle there

    def named(self, name: str) -> Instance:
        """The instance of this name, made on first sight."""
        instance = self.by_name.get(name)
        if instance is None:
            instance = self.by_name[name] = Instance(name, self._options)
            self._spoken = None
        return instance

    def known(self) -> list[Instance]:
        """All of them, less the nameless one that stood in until a name was heard, unless it has work."""
        return [
            item
            for item in self.by_name.values()
            if item.name != DEFAULT
            or item.signal.reading is not None
            or item.ledger.leases
            or len(self.by_name) == 1
        ]

    def observe(self, readings: Sequence[Reading], now: float) -> None:
        """Take in a sample; an instance nobody has spoken of or worked on for long is forgotten."""
        known = self._lengths.is_known
        for reading in readings:
            instance = self.named(reading.instance)
            instance.lengths_known = known
            instance.observe(reading, now)
        self._absence.look(self.by_name.values(), now)
        self._forget(now)
        self._spoken = None

    def could_not_read(self, name: str) -> None:
        """An attempt to read this instance has failed."""
        self.named(name).is_silent = True

    def candidates(self, ask: Ask) -> list[Instance]:
        """Where this request may run."""
        if ask.instance is not None and not ask.instance.startswith(ranks.MARK):
            return [self.named(ask.instance)]
        spoken = self._spoken
        if spoken is None:
            spoken = [item for item in self.by_name.values() if item.signal.reading is not None]
            present = [item for item in spoken if not item.has_gone]
            spoken = self._spoken = present or spoken or [self.named(DEFAULT)]
            is_open = not (self._may_be_shut or all(item.is_asleep for item in spoken))
            self._plain_below = max(item.least_bound for item in spoken) if is_open else 0.0
        return spoken if ask.instance is None else ranks.of_rank(spoken, ask.instance) or spoken

    def place(self, ask: Ask, kinds: Kinds, quantile: float, ceiling: Ceiling, now: float) -> Placement:
        """The least loaded instance where it fits, or the one whose refusal is the most hopeful."""
        candidates = self.candidates(ask)
        if len(candidates) == 1:
            return self._place_on(candidates[0], ask, kinds, quantile, ceiling, now)
        placements = [self._place_on(item, ask, kinds, quantile, ceiling, now) for item in candidates]
        return min(placements, key=_hopefulness)

    def _place_on(
        self, instance: Instance, ask: Ask, kinds: Kinds, quantile: float, ceiling: Ceiling, now: float
    ) -> Placement:
        """What it would hold at once and generate there; an unread prompt is never discounted.

        The prompt is as large as is known now, which may be more than at its arrival.
        """
        prompt, context = self._prompts.of(ask), instance.context_limit
        if context is not None and prompt > context:
            prompt = fitting(ask, prompt, context)
        share = instance.calibration.charged_share(ask.tenant)
        predicted = left = self._predict(ask, prompt, kinds, quantile, instance)
        if ask.generates:
            left += instance.lag_tokens(prompt)
        if ask.sequences == 1:
            demand = Demand(share * prompt + instance.block_tokens / 2, left, 1)
            verdict = instance.verdict(demand, prompt, ceiling, now)
            return Placement(verdict, instance, demand, quantile, predicted, prompt, share)
        at_once, seats, part = width = _spread(instance, ask, share * prompt, left, ceiling)
        demand = Demand(share * prompt * part + at_once * instance.block_tokens / 2, left, at_once)
        verdict = instance.verdict(demand, prompt, ceiling, now, seats)
        return Placement(verdict, instance, demand, quantile, predicted, prompt, share, width)

    def predict(self, ask: Ask, kinds: Kinds, quantile: float, instance: Instance) -> float:
        """Output tokens per sequence, clamped to what remains of the context and of the capacity."""
        return self._predict(ask, self._prompts.of(ask), kinds, quantile, instance)

    def _predict(self, ask: Ask, prompt: float, kinds: Kinds, quantile: float, instance: Instance) -> float:
        if not ask.generates:
            return 0.0
        total, each = self._lengths.predict(kinds, ask.max_output_tokens, quantile), prompt / ask.sequences
        for bound in (instance.context_limit, instance.capacity):
            if bound is not None and bound - each < total:
                total = bound - each
        return total if total > 1.0 else 1.0

    def is_plain(self, ask: Ask) -> bool:
        """Whether at a glance nothing stands against it: neither `never_fits`, nor asleep, nor shut."""
        if self._spoken is None or ask.instance is not None:
            return False
        return ask.prompt_tokens_floor < self._plain_below

    def never_fits(self, ask: Ask) -> str | None:
        """Why the certain part of this prompt can run nowhere, in English; `None` if it may.

        Several prompts in one request may run one after the other, so each is judged by itself.
        """
        floor = ask.prompt_tokens_floor / ask.sequences
        candidates = self.candidates(ask)
        for instance in candidates:
            if instance.may_hold(floor):
                return None
        context, holds = candidates[0].context_limit, f"The prompt has at least {floor:.0f} tokens"
        if context is not None and floor >= context:
            return f"{holds}; the context limit is {context:.0f}."
        return f"{holds}; the KV cache holds {candidates[0].stated_capacity:.0f}."

    def is_asleep(self, ask: Ask) -> bool:
        """Whether every instance it may run on sleeps."""
        return all(instance.is_asleep for instance in self.candidates(ask))

    def is_shut(self, ask: Ask, now: float) -> bool:
        """Whether there is no signal and the policy is to stay closed then."""
        return self._may_be_shut and all(item.state(now) is State.BLIND for item in self.candidates(ask))

    def limited(self, now: float, *, by: Verdict) -> None:
        """Somebody was held back."""
        for instance in self.by_name.values():
            instance.limited(now, by=by)

    def changes_at(self, now: float) -> float | None:
        """When the passing of time next changes what some instance's signal is worth."""
        first: float | None = None
        for instance in self.by_name.values():
            instant = instance.signal.changes_at(now)
            if instant is not None and (first is None or instant < first):
                first = instant
        return first

    def _forget(self, now: float) -> None:
        after_s = self._options.signal.blind_after_s * FORGET_AFTER
        for name, instance in list(self.by_name.items()):
            age_s = instance.signal.age_s(now)
            has_gone = age_s is None or age_s > after_s or len(self.by_name) > MAX_INSTANCES
            if has_gone and not instance.ledger.leases and len(self.by_name) > 1:
                del self.by_name[name]


def _spread(instance: Instance, ask: Ask, prompt: float, left: float, ceiling: Ceiling) -> Spread:
    """What a request of several sequences takes up at once there, of so many charged prompt tokens."""
    capacity, most = instance.capacity, instance.max_sequences
    if capacity is not None:
        capacity *= ceiling.share
    elif most is None:
        most = int(instance.budget.concurrency)
    sequences = None if most is None else most * ceiling.share
    bounds = Bounds(sequences, capacity, instance.context_limit, instance.block_tokens / 2)
    return spread(ask, prompt, left, bounds)


def _hopefulness(placement: Placement) -> tuple[int, float]:
    """Less is better: fitting, then the bound that eases first, then the load."""
    verdict, instance = placement.verdict, placement.instance
    rank = 0 if verdict is Verdict.FITS else 1 + _EASIER_FIRST.index(verdict)
    return rank, instance.ledger.held_tokens() / (instance.capacity or 1.0)
