"""Full-jitter exponential back-off between looks at a level that is above the watermark.

Law of this file: a wait is drawn, never slept. Source: "full jitter" of the AWS Architecture Blog,
"Exponential Backoff And Jitter": the wait is uniform between zero and a bound that grows by a factor.
"""

from __future__ import annotations

from tidegate.core.decisions import Uniform
from tidegate.core.options import BackoffOptions

LEAST_WAIT_S = 0.001  # a drawn zero would make the shell spin


class Backoff:
    """One run of looks; `reset` starts the next run from the base again."""

    def __init__(self, options: BackoffOptions) -> None:
        self._options = options
        self._bound_s = options.base_s

    def next_wait_s(self, uniform: Uniform) -> float:
        """Seconds until the next look; the bound grows with each call up to the cap."""
        wait_s = uniform() * self._bound_s
        self._bound_s = min(self._options.cap_s, self._bound_s * self._options.factor)
        return max(LEAST_WAIT_S, wait_s)

    def reset(self) -> None:
        """The level fell, or something was dispatched: the next run begins at the base."""
        self._bound_s = self._options.base_s
