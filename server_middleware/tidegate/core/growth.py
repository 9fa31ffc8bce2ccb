"""How fast the engine generates, and how far what its streams show lags behind or runs ahead of that.

Law of this file: the engine's own counter is the measure of output. A stream shows events, not tokens: a
busy engine merges several tokens into one, and text is counted by bytes. Between two readings the engine's
counter is compared with what our streams reported; the ratio of both, over the last few readings, is the
factor by which every report is multiplied. Uncorrected, the prompt share would have to explain the
difference, and be wrong for every newcomer. Nothing is learnt while the engine works for others too.
"""

from __future__ import annotations

from tidegate.core.ledger import Lease, Ledger
from tidegate.core.reading import Reading

LEAST_FACTOR, MOST_FACTOR = 0.25, 8.0
DECAY_PER_S = 0.9  # of the sums
NOISE = 0.1  # a ratio this close to one says nothing: reports and readings are not of one instant
ENOUGH_TOKENS = 128.0  # reported, from which on the ratio says something


class Growth:
    """The factor of one instance, and its rate per sequence."""

    def __init__(self) -> None:
        self.factor = 1.0  # true over reported tokens
        self.rate: float | None = None  # tokens per second of one sequence
        self._counter: float | None = None
        self._streamed = self._told_s = (
            0.0  # since the last reading: tokens, and the sequence seconds between
        )
        self._busy_s = 0.0  # sequence seconds of those that have ended since
        self._sums = (0.0, 0.0, 0.0, 0.0)  # generated, busy seconds, streamed, told seconds; decayed

    def report(self, lease: Lease, output_tokens: float, now: float) -> None:
        """A stream has shown so many tokens by now; what the first report holds took an unknown time."""
        if lease.last_token_at is not None and lease.blocked_since is None:
            self._streamed += output_tokens - lease.reported
            self._told_s += (now - lease.last_token_at) * lease.sequences
        lease.reported = output_tokens

    def seen(self, lease: Lease) -> float:
        """Output of a stream: as reported, times the factor; one that runs has not reached its maximum."""
        seen = lease.reported * self.factor
        declared = lease.ask.max_output_tokens
        if declared is None or self.factor == 1.0:
            return seen
        return min(seen, max(0.0, declared - 1.0) * lease.ask.sequences)

    def ended(self, lease: Lease, read_at: float, now: float) -> None:
        """A lease has ended, after the reading of `read_at`."""
        if self._counter is not None:  # else there is nothing to divide by it
            self._busy_s += _decoding_s(lease, read_at, now)

    def observe(self, reading: Reading, ledger: Ledger, read_at: float, now: float) -> None:
        """Compare the engine's counter with the streams, and state every stream's output anew."""
        busy_s = self._busy_s + sum(_decoding_s(lease, read_at, now) for lease in ledger.leases.values())
        is_ours = reading.running is not None and reading.running <= ledger.sequences
        before, self._counter = self._counter, reading.generation_tokens
        if is_ours and before is not None and self._counter is not None and self._counter > before:
            self._learn(self._counter - before, busy_s, now - read_at)
        self._streamed = self._told_s = self._busy_s = 0.0
        for lease in ledger.leases.values():
            seen = self.seen(lease)
            if lease.reported > 0 and seen != lease.seen:  # the factor has changed since its last report
                lease.seen = seen
                ledger.refresh(lease)

    def _learn(self, generated: float, busy_s: float, elapsed_s: float) -> None:
        """So many tokens since the last reading, in so many sequence seconds."""
        if busy_s <= 0:
            return
        kept = DECAY_PER_S**elapsed_s
        made, made_s, shown, shown_s = (kept * total for total in self._sums)
        made, made_s = made + generated, made_s + busy_s
        shown, shown_s = shown + self._streamed, shown_s + self._told_s
        self._sums = (made, made_s, shown, shown_s)
        self.rate = made / made_s
        if shown >= ENOUGH_TOKENS and shown_s > 0:
            ratio = min(MOST_FACTOR, max(LEAST_FACTOR, self.rate * shown_s / shown))
            self.factor = ratio if abs(ratio - 1.0) > NOISE else 1.0


def _decoding_s(lease: Lease, since: float, now: float) -> float:
    """Sequence seconds in which a lease generated; a stream does so from its first token on."""
    ask, begun_at = lease.ask, lease.first_token_at
    if begun_at is None and not ask.streams:
        begun_at = lease.started_at
    if begun_at is None or lease.is_drained or not ask.generates:
        return 0.0
    lasted_s = now - (since if since > begun_at else begun_at)
    return lasted_s * lease.sequences if lasted_s > 0.0 else 0.0
