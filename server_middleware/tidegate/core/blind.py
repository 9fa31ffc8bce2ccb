"""How much may run while no reading tells: a budget driven by what the gate sees itself.

Law of this file: without a gauge, streams are the gauge. A gap in a running stream is a preemption seen
from outside; a late first byte is a queue inside the engine. Either one shrinks the budget, at most once
per mean service time; a quiet service time while the budget was the limit grows it a little (additive
increase, multiplicative decrease).
"""

from __future__ import annotations

GAP_FLOOR_S = 5.0  # a silence shorter than this is never taken for a preemption
GAP_FACTOR = 20.0  # of the usual time between tokens
LATE_FACTOR = 3.0  # of the usual time to first token, per prompt token
LEAST_PROMPT = 32.0  # a shorter prompt takes no less time to start
GAP_CUT, LATE_CUT, ERROR_CUT = 0.8, 0.9, 0.9
GROWTH = 0.02  # of the whole budget, per quiet service time
EPISODE_S = 1.0  # the gate looks more often than this while somebody is held back
LEAST, MOST = 0.1, 1.0
MOST_CONCURRENCY_FACTOR = 8.0  # where no capacity is known the budget may grow this far beyond its start


class Usual:
    """A running mean that follows slowly: what is usual."""

    __slots__ = ("rate", "value")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.value: float | None = None

    def take(self, sample: float) -> None:
        """One more sample."""
        self.value = sample if self.value is None else self.value + self.rate * (sample - self.value)


class BlindBudget:
    """A share in 0.1..1 of the capacity, and a bound on sequences where no capacity is known."""

    def __init__(self, concurrency: int) -> None:
        self.share = MOST
        self.concurrency = float(concurrency)
        self._start = float(concurrency)
        self._changed_at = float("-inf")
        self._limited_at = float("-inf")
        self.inter_token_s = Usual(0.05)
        self._first_token_s = Usual(0.05)  # per prompt token

    @property
    def gap_s(self) -> float:
        """A running stream silent for longer than this has probably been preempted."""
        return max(GAP_FLOOR_S, GAP_FACTOR * (self.inter_token_s.value or 0.0))

    def first_token(self, waited_s: float, prompt_tokens: float) -> bool:
        """A lease's first token came `waited_s` after its start; whether that is distress."""
        per_token = waited_s / max(LEAST_PROMPT, prompt_tokens)
        usual = self._first_token_s.value
        if usual is not None and per_token > LATE_FACTOR * usual:
            return True
        self._first_token_s.take(per_token)
        return False

    def token(self, gap_s: float, tokens: float) -> bool:
        """`tokens` came in one sequence after a silence of `gap_s`; whether that is distress."""
        if gap_s > self.gap_s:
            return True
        if tokens > 0:
            self.inter_token_s.take(gap_s / tokens)
        return False

    def cut(self, factor: float, now: float, service_s: float) -> None:
        """There was distress while blind; at most one cut per service time."""
        if now - self._changed_at < service_s:
            return
        self._changed_at = now
        self.share = max(LEAST, self.share * factor)
        self.concurrency = max(1.0, self.concurrency * factor)

    def limiting(self, now: float, service_s: float) -> None:
        """The budget turned somebody away; after a quiet service time it grows."""
        if now - self._limited_at > max(service_s, EPISODE_S):
            self._changed_at = max(self._changed_at, now)  # a new spell: the quiet time begins
        self._limited_at = now
        if now - self._changed_at >= service_s:
            self._changed_at = now
            self.share = min(MOST, self.share + GROWTH)
            self.concurrency = min(self._start * MOST_CONCURRENCY_FACTOR, self.concurrency + 1)
