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
DECAY = 0.7  # of the sums, per reading
ENOUGH_TOKENS = 128.0  # reported, from which on the ratio says something


class Growth:
    """The factor of one instance, and its rate per sequence."""

    def __init__(self) -> None:
        self.factor = 1.0  # true over reported tokens
        self.rate: float | None = None  # tokens per second of one sequence
        self._counter: float | None = None
        self._generated = self._reported = 0.0  # by streams; decayed sums
        self._streamed = 0.0  # reported since the last reading ...
        self._busy_s = self._streams_s = 0.0  # ... and the sequence seconds of those that have ended since

    def report(self, lease: Lease, output_tokens: float) -> None:
        """A stream has shown so many tokens by now."""
        self._streamed += output_tokens - lease.reported
        lease.reported = output_tokens

    def seen(self, lease: Lease) -> float:
        """Output of a stream: as reported, times the factor; one that runs has not reached its maximum."""
        seen = lease.reported * self.factor
        declared = lease.ask.max_output_tokens
        if declared is None or self.factor == 1.0:
            return seen
        return min(seen, (declared - 1.0) * lease.sequences)

    def ended(self, lease: Lease, span_s: float) -> None:
        """A lease has ended that ran for so long since the last reading."""
        self._take(lease, span_s)

    def observe(self, reading: Reading, ledger: Ledger, elapsed_s: float, now: float) -> None:
        """Compare the engine's counter with the streams, and state every stream's output anew."""
        for lease in ledger.leases.values():
            self._take(lease, min(elapsed_s, now - lease.started_at))
        is_ours = reading.running is not None and reading.running <= ledger.sequences
        before, self._counter = self._counter, reading.generation_tokens
        if is_ours and before is not None and self._counter is not None and self._counter > before:
            self._learn(self._counter - before)
        self._streamed = self._busy_s = self._streams_s = 0.0
        for lease in ledger.leases.values():
            if lease.reported > 0:
                lease.seen = self.seen(lease)
                lease.refresh()
        ledger.changed()

    def _take(self, lease: Lease, span_s: float) -> None:
        if lease.is_drained or not lease.ask.generates:
            return
        self._busy_s += span_s * lease.sequences
        if lease.ask.streams and lease.blocked_since is None:
            self._streams_s += span_s * lease.sequences

    def _learn(self, generated: float) -> None:
        """So many tokens since the last reading, in the sequence seconds that were taken down."""
        if self._busy_s <= 0:
            return
        rate = generated / self._busy_s
        self.rate = rate if self.rate is None else self.rate * DECAY + rate * (1 - DECAY)
        self._generated = self._generated * DECAY + generated * self._streams_s / self._busy_s
        self._reported = self._reported * DECAY + self._streamed
        if self._reported >= ENOUGH_TOKENS:
            self.factor = min(MOST_FACTOR, max(LEAST_FACTOR, self._generated / self._reported))
