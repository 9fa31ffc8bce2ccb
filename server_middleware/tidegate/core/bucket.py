"""A token bucket of which part may be promised: what is there, and who may take it.

Law of this file: three figures make up a bucket: `level` (what is there), `booked` (of it, or of coming
refill, promised to refused callers) and `debt` (settlements above their estimate, paid only from what nobody
has booked). A newcomer may take what is left of all three; a holder of a booking that has fallen due may
take from `level` itself.
"""

from __future__ import annotations

ROUNDING = 1e-9  # relative; float error must not turn an exact return away


class TokenBucket:
    """A rate, a burst, and claims on the refill to come.

    Args:
        rate: units per second.
        burst: most units that idle time can save up.
        now: seconds; the bucket starts full.
    """

    __slots__ = ("booked", "burst", "debt", "level", "rate", "refilled_at")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.level = burst
        self.booked = 0.0
        self.debt = 0.0
        self.refilled_at = now

    def refill(self, now: float) -> None:
        """Bring the level up to `now`; a clock that went backwards adds nothing."""
        if now > self.refilled_at:
            self.level += self.rate * (now - self.refilled_at)
            self.refilled_at = now
        self.level = min(self.level, max(self.burst, self.booked))
        paid = min(self.debt, max(0.0, self.level - self.booked))
        self.level -= paid
        self.debt -= paid

    def free(self) -> float:
        """What a newcomer may take; negative while bookings and debt exceed the level."""
        return self.level - self.booked - self.debt

    def wait_s(self, cost: float) -> float:
        """Seconds until a newcomer of this cost could take, 0 if now."""
        missing = cost - self.free()
        return missing / self.rate if missing > ROUNDING * self.burst else 0.0

    def holds(self, cost: float) -> bool:
        """Whether a booking of this cost that has fallen due can be honoured."""
        return self.level + ROUNDING * self.burst >= cost

    def settle(self, difference: float) -> None:
        """Give back what was not used (negative), or owe what was used beyond the charge."""
        if difference > 0:
            self.debt += difference
        else:
            self.level = min(self.level - difference, max(self.burst, self.booked))
