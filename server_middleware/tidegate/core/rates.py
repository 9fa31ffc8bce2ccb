"""How fast the server gives slots back: the basis of every wait that is told.

Law of this file: a rate is measured only while work waited. Completions of a server that is not full
measure demand, not speed. Until enough were seen under load, what runs now over the usual service time
answers instead.
"""

from __future__ import annotations

import math

TAU_S = 10.0  # of the moving average
OPTIMISM = 1.1  # an idle slot costs more than one more retry (figures: docs/theory.md)
ENOUGH_COMPLETIONS = 3.0
SERVICE_RATE = 0.1
TOKENS_PER_S = 50.0  # of one sequence, before any answer has been timed


class ServiceRate:
    """Completions per second under load, and the usual service time.

    Args:
        default_tokens: length of an answer before any was seen.
        now: seconds.
    """

    def __init__(self, default_tokens: float, now: float) -> None:
        self.service_s = default_tokens / TOKENS_PER_S
        self.is_timed = False
        self._completions = 0.0
        self._loaded_s = 0.0
        self._at = now
        self.is_loaded = False

    def tick(self, now: float, *, is_loaded: bool) -> None:
        """Account for the time since the last call, then note whether work waits from now on.

        While no work waits, nor did at the last call, there is no need for one.
        """
        elapsed_s = now - self._at
        if elapsed_s > 0:
            self._at = now
        if self.is_loaded and elapsed_s > 0:
            kept = math.exp(-elapsed_s / TAU_S)
            self._completions *= kept
            self._loaded_s = self._loaded_s * kept + TAU_S * (1 - kept)
        self.is_loaded = is_loaded

    def completed(self, service_s: float) -> None:
        """One answer has completed, `service_s` after its start."""
        rate = SERVICE_RATE if self.is_timed else 1.0
        self.service_s += rate * (max(0.001, service_s) - self.service_s)
        self.is_timed = True
        if self.is_loaded:
            self._completions += 1

    @property
    def is_measured(self) -> bool:
        """Whether the rate rests on completions under load."""
        return self._completions >= ENOUGH_COMPLETIONS and self._loaded_s > 0

    def per_s(self, running: int, least: float) -> float:
        """Slots given back per second, never below `least`."""
        measured = self._completions / self._loaded_s if self.is_measured else 0.0
        return max(least, OPTIMISM * max(measured, running / self.service_s))
