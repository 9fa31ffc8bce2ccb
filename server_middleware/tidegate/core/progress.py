"""How far a running answer has come: what its stream shows, and what is inferred where nothing shows.

Law of this file: a lease follows the engine, not the socket. A reader too slow for its stream changes nothing
by itself; only where our own `send` is blocked and the longest answer there may be must long have been
generated (or nothing is generated at all) is a lease taken as finished early.
"""

from __future__ import annotations

import math

from tidegate.core.instance import Instance
from tidegate.core.ledger import Lease
from tidegate.core.lengths import LengthModel
from tidegate.core.rates import TOKENS_PER_S

INFERRED_PACE = 1 / 1.1  # of the engine's: an answer that shows nothing must not be taken for finished
PREDICT_EVERY_TOKENS = 16.0  # a prediction is conditioned on what has been generated since


class Progress:
    """Carries running answers forward.

    Args:
        lengths: predicts what is left of an answer that has come so far.
    """

    def __init__(self, lengths: LengthModel) -> None:
        self._lengths = lengths

    def report(self, lease: Lease, instance: Instance, output_tokens: float, now: float) -> None:
        """Output of all sequences seen so far; the first call marks the first token."""
        if lease.first_token_at is None:
            instance.first_token(lease, now)
        elif lease.last_token_at is not None and output_tokens > lease.reported:
            tokens = (output_tokens - lease.reported) / lease.sequences * instance.growth.factor
            instance.token(now - lease.last_token_at, tokens, now)
        instance.signal.progress_at = now
        if output_tokens > lease.reported:
            instance.growth.report(lease, output_tokens, now)
            self._grow(lease, instance, instance.growth.seen(lease))
        lease.last_token_at = now

    def carry_forward(self, lease: Lease, instance: Instance, now: float) -> None:
        """What no stream reports: an answer in one piece, or a stream nobody drains."""
        if lease.is_drained:
            return
        if lease.blocked_since is not None:
            self._drain_if_finished(lease, instance, now - lease.blocked_since, now)
        elif not lease.ask.generates:
            return
        elif not lease.ask.streams:
            self._infer(lease, instance, now)
        elif lease.last_token_at is not None:
            instance.token(now - lease.last_token_at, 0.0, now)

    def _infer(self, lease: Lease, instance: Instance, now: float) -> None:
        """A whole answer shows nothing until it ends; the engine's pace says how far it should be."""
        rate = instance.prefill.rate
        read_s = lease.prompt / rate if rate else 0.0
        running_s = now - lease.started_at - read_s
        if running_s <= 0:
            return
        instance.ledger.mark_first_token(lease, lease.started_at + read_s)
        made = running_s * INFERRED_PACE / _pace_s(instance)
        if lease.ask.max_output_tokens is not None:
            made = min(made, lease.ask.max_output_tokens - 2 * lease.pad / lease.sequences)
        self._grow(lease, instance, max(lease.seen, made * lease.sequences))

    def _drain_if_finished(self, lease: Lease, instance: Instance, blocked_s: float, now: float) -> None:
        """Of an answer that does not generate the engine has nothing left to do once it is being sent."""
        if lease.ask.generates:
            made = lease.seen + blocked_s / _pace_s(instance) * lease.sequences
            if made < _most_output(lease, instance) * lease.ask.sequences:
                return
        instance.ledger.mark_first_token(lease, now)
        instance.ledger.drain(lease)

    def _grow(self, lease: Lease, instance: Instance, output_tokens: float) -> None:
        declared = lease.ask.max_output_tokens
        lease.seen = output_tokens
        per_sequence = output_tokens / lease.ask.sequences
        if per_sequence >= lease.predicted or per_sequence - lease.predicted_at >= PREDICT_EVERY_TOKENS:
            lease.predicted = self._lengths.predict(lease.kinds, declared, lease.quantile, per_sequence)
            lease.predicted_at = per_sequence
        instance.ledger.refresh(lease)


def _most_output(lease: Lease, instance: Instance) -> float:
    """Tokens per sequence that no answer exceeds: as declared, and what the engine has room for at all."""
    bounds = (lease.ask.max_output_tokens, instance.context_limit or instance.capacity)
    return min((bound for bound in bounds if bound is not None), default=math.inf)


def _pace_s(instance: Instance) -> float:
    """Seconds per token of one sequence: by the engine's counter, else by the streams."""
    if instance.growth.rate:
        return 1.0 / instance.growth.rate
    return instance.budget.inter_token_s.value or 1.0 / TOKENS_PER_S
