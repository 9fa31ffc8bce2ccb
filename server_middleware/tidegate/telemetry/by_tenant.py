"""Refusals of the last minute by tenant, and all of them by reason: who floods, for the operator's page.

Law of this file: bounded, whatever names callers go by; what happened more than a minute ago does not
count. (Metrics have no tenants: their labels must be few.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.telemetry.rows import ROW_OF, Row, Rows

SLICE_S = 10.0
SLICES = 6
MOST_TENANTS = 1_000  # told apart in a slice
NAMELESS = "unknown"


class RefusedByTenant:
    """A hook that counts; `clock` is monotonic seconds."""

    kinds = frozenset({EventKind.REFUSED, EventKind.TICK})

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slices: deque[tuple[int, Counter[str]]] = deque(maxlen=SLICES)
        self._reasons: Counter[str] = Counter()  # bounded: reasons are the code's own words
        self._refused = Rows(self._take)
        self.rows = {EventKind.REFUSED: self._refused.append}

    def __call__(self, event: AdmissionEvent) -> None:
        if event.kind is EventKind.REFUSED:
            self._refused.append(ROW_OF[event.kind](event))
        self._refused.add_up()  # at each tick too: a row's slice is that in which it is added up

    def _take(self, rows: list[Row]) -> None:
        self._reasons.update(row[2] for row in rows)
        number = int(self._clock() // SLICE_S)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, Counter()))
        counts = self._slices[-1][1]
        for tenant, count in Counter(row[0] or NAMELESS for row in rows).items():
            if tenant in counts or len(counts) < MOST_TENANTS:
                counts[tenant] += count

    def lately(self) -> dict[str, int]:
        """Refusals by tenant in the last fifty to sixty seconds."""
        self._refused.add_up()
        oldest = int(self._clock() // SLICE_S) - SLICES
        total: Counter[str] = Counter()
        for number, counts in self._slices:
            if number > oldest:
                total.update(counts)
        return dict(total)

    def by_reason(self) -> dict[str, int]:
        """All refusals since the start, by reason; those that the gate itself never saw among them."""
        self._refused.add_up()
        return dict(self._reasons)
