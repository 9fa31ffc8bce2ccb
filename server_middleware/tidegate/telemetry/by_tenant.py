"""Refusals of the last minute by tenant: who floods, for the operator's page.

Law of this file: bounded, whatever names callers go by; what happened more than a minute ago does not
count. (Metrics have no tenants: their labels must be few.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from tidegate.telemetry.events import AdmissionEvent, EventKind

SLICE_S = 10.0
SLICES = 6
MOST_TENANTS = 1_000  # told apart in a slice
NAMELESS = "unknown"


class RefusedByTenant:
    """A hook that counts; `clock` is monotonic seconds."""

    kinds = frozenset({EventKind.REFUSED})

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slices: deque[tuple[int, Counter[str]]] = deque(maxlen=SLICES)

    def __call__(self, event: AdmissionEvent) -> None:
        number = int(self._clock() // SLICE_S)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, Counter()))
        counts = self._slices[-1][1]
        name = event.tenant or NAMELESS
        if name in counts or len(counts) < MOST_TENANTS:
            counts[name] += 1

    def lately(self) -> dict[str, int]:
        """Refusals by tenant in the last fifty to sixty seconds."""
        oldest = int(self._clock() // SLICE_S) - SLICES
        total: Counter[str] = Counter()
        for number, counts in self._slices:
            if number > oldest:
                total.update(counts)
        return dict(total)
