"""How many calls a second one process sends to a server that has refused some of them.

Law: pure. The pace is what the server says it allows, or else what it has shown: attempts it let in, over the
time from the first of one cycle to the first of a later one, so that its own pauses count. What it has shown
is probed upwards for as long as nothing is refused, and is taken back to what it then shows. Source of the
thought: N. Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue, 2016.

While a server is quiet it saves up (a token bucket fills). Those savings are spent evenly over the calls that
wait, and never at more than one and a half times the rate: all at once they would be the next herd.
"""

from __future__ import annotations

import math

from .limits import Allowance

# Tuned in simulation on token buckets (5 to 100 per second, waits told in seconds and in milliseconds) and on
# servers with 8 and 32 places, for 100 to 400 callers: faster growth ends in more quiet times, slower leaves
# a freed server idle.
_LEAD = 1.2
"""The first cycle begins this much faster than the pace shown, which is what a server lets in at least."""
_GROWTH_PER_S = math.log(2.0) / 10.0
"""What each release adds to the pace: unhindered it doubles in ten seconds. Releases count, not time: a line
that was held up (by its window, by a busy event loop) has not shown that the server bears more.
"""
_LATER_GROWTH_PER_S = _GROWTH_PER_S / 2
"""After a second refusal the pace has been measured, and the next one is to come late."""
_BLIND_PACE_PER_S = 8.0
_BLIND_GROWTH_PER_S = math.log(2.0)
_LEAST_SHOWN = 5
"""Fewer attempts let in say too little about a pace; until then it starts blind and grows fast (slow
start).
"""
_LEAST_SPAN_S = 1.0
"""What was let in counts over this time at least: twenty at one instant are a burst, not a rate."""
_COUNTED_S = 10.0
"""How far back the first cycle looks; without a bound an hour of light traffic would pass for the server's
pace.
"""
_TRUSTED_SAVINGS = 0.6
"""Share of what the server should have saved up that is counted on: to overdraw it costs another pause."""
_MOST_OVER = 1.5
_GAP_JITTER = 0.2


class Pace:
    """The pace of one lane, cycle by cycle: a quiet time, then releases until the next refusal."""

    def __init__(self) -> None:
        self._shown_per_s: float | None = None
        self._stated: Allowance | None = None
        self._cycles = 0
        self._first_burst = 0
        self._since: float | None = None
        self._quiet = (0.0, 0.0)
        self._let_in = 0
        self._began_at = 0.0
        self._released = 0

    def let_in(self, now: float, *, free: bool) -> None:
        """An attempt was not refused. `free`: nothing had been refused yet, so the count may begin here."""
        if free and (self._since is None or now - self._since > _COUNTED_S):
            self._since, self._let_in = now, 0
        self._let_in += 1

    def quiet(self, now: float, until: float) -> None:
        """A quiet time begins, at first believed to last `until` then."""
        self._quiet = (now, until)

    def state(self, allowance: Allowance) -> None:
        """The server has said what it allows."""
        self._stated = allowance

    def begin_cycle(self, now: float) -> None:
        """The first release after a quiet time."""
        self._began_at, self._released = now, 0
        self._cycles += 1
        until = self._quiet[1]
        if self._since is None:
            self._since, self._let_in = now, 0
        elif self._let_in >= _LEAST_SHOWN and until > self._since:
            self._first_burst = self._first_burst or self._let_in
            if self._stated is None or self._cycles > 1:
                self._learn(self._let_in / max(_LEAST_SPAN_S, until - self._since))
            self._since, self._let_in = now, 0

    def released(self) -> None:
        """One call has left in this cycle."""
        self._released += 1

    def forget(self) -> None:
        """The server has refused nothing for a while."""
        self._shown_per_s = self._stated = self._since = None
        self._cycles = self._first_burst = 0

    def at(self, now: float, waiting: int) -> float:
        """Calls per second to leave at `now`, with `waiting` of them in line."""
        shown = None if self._shown_per_s is None else self._shown_at(self._shown_per_s, now, waiting)
        if self._stated is not None:
            rate = self._stated.quota / self._stated.window_s
            stated = rate * self._over(rate, self._stated.quota, now, waiting)
            return stated if shown is None else min(shown, stated)
        return _BLIND_PACE_PER_S + _BLIND_GROWTH_PER_S * self._released if shown is None else shown

    def gap_s(self, now: float, waiting: int, uniform: float) -> float:
        """Seconds between two calls that leave, jittered so that processes do not fall into step."""
        return (1.0 + _GAP_JITTER * (2.0 * uniform - 1.0)) / self.at(now, waiting)

    def _learn(self, shown_per_s: float) -> None:
        known = self._shown_per_s
        lower = known is None or shown_per_s < known
        self._shown_per_s = shown_per_s if known is None or lower else (known + shown_per_s) / 2

    def _shown_at(self, shown_per_s: float, now: float, waiting: int) -> float:
        if self._cycles <= 1:
            return shown_per_s * _LEAD + _GROWTH_PER_S * self._released
        saved = min(float(self._first_burst), shown_per_s * (self._began_at - self._quiet[0]))
        over = self._over(shown_per_s, saved, now, waiting)
        return shown_per_s * over + _LATER_GROWTH_PER_S * self._released

    def _over(self, rate_per_s: float, saved: float, now: float, waiting: int) -> float:
        """How far above its rate to go, so that the rest of what was `saved` lasts as long as the line."""
        left = _TRUSTED_SAVINGS * saved - (self._released - rate_per_s * max(0.0, now - self._began_at))
        if left <= 0:
            return 1.0
        return min(_MOST_OVER, waiting / (waiting - left)) if waiting > left else _MOST_OVER
