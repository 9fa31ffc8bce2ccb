"""Keeping the time between tokens below its target.

Law of this file: latency is bought with concurrency. While the usual time between tokens is above the target,
the share of the bounds on sequences and on unread prompt tokens that may be used shrinks; below it, it grows
back (additive increase, multiplicative decrease). Without a target the share is always one.
"""

from __future__ import annotations

from dataclasses import dataclass

EVERY_S = 1.0
CUT, GROWTH = 0.9, 0.02
LEAST = 0.1


@dataclass(slots=True)
class PaceGuard:
    """A share in 0.1..1 that answers to the time between tokens.

    `target_s`: seconds between two tokens of one sequence; `None` for no target.
    """

    target_s: float | None
    share: float = 1.0
    most_sequences: int = 0  # seen running at once, the base of the bound where the engine states none
    _changed_at: float = float("-inf")

    def take(self, inter_token_s: float | None, sequences: int, now: float) -> None:
        """The usual time between tokens at this moment, with so many sequences running."""
        self.most_sequences = max(self.most_sequences, sequences)
        if self.target_s is None or inter_token_s is None or now - self._changed_at < EVERY_S:
            return
        self._changed_at = now
        if inter_token_s > self.target_s:
            self.share = max(LEAST, self.share * CUT)
        else:
            self.share = min(1.0, self.share + GROWTH)

    def bound(self, stated: int | None) -> int | None:
        """The bound on running sequences: the stated one, times the share."""
        if self.share >= 1.0:
            return stated
        return max(1, int((stated or self.most_sequences) * self.share))
