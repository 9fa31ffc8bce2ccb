"""The retry budget: how many retries nobody asked for one origin may see.

Law: pure; never blocks. A retry that the server asked for (it named a time) is free, since the lane paces
those; one after a broken connection or an unexplained error costs a token. Every attempt that is let in gives
a tenth back, so in a long outage retries fade to a tenth of what still succeeds. Source: gRPC proposal A6,
"Retry Throttling".
"""

from __future__ import annotations

_REFUND = 0.1


class RetryBudget:
    """Tokens for unadvised retries; `capacity` at first and at most."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.level = capacity

    def spend(self) -> bool:
        """Take a token; False when there is none."""
        if self.level < 1.0:
            return False
        self.level -= 1.0
        return True

    def refund(self) -> None:
        """An attempt was let in."""
        if self.level < self.capacity:
            self.level = min(self.capacity, self.level + _REFUND)
