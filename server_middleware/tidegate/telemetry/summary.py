"""Refusals summed up in one line: who was refused, why, how often, and how full the engine was.

Law of this file: bounded, however many strangers are refused; names and figures only, no credential.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidegate.core.statistics import InstanceStatistics, Statistics
from tidegate.telemetry.events import AdmissionEvent
from tidegate.telemetry.rows import Row

MOST_KINDS = 1_000  # told apart between two summaries
SHOWN = 6
_OTHERS = ("others", "", "")


class RefusalSummary:
    """Counts refusals by tenant, class and reason between two lines.

    Args:
        what: was done to them, as the line begins.
    """

    def __init__(self, what: str = "Refused") -> None:
        self._what = what
        self._counts: Counter[Row] = Counter()  # by tenant, class and reason

    def __bool__(self) -> bool:
        return bool(self._counts)

    def take(self, event: AdmissionEvent) -> None:
        """One more."""
        self.take_rows([(event.tenant, event.priority_class, event.reason)])

    def take_rows(self, rows: Sequence[Row]) -> None:
        """More of them: rows that begin with tenant, class and reason."""
        for kind, count in Counter(row[:3] for row in rows).items():
            if kind not in self._counts and len(self._counts) >= MOST_KINDS:
                kind = _OTHERS
            self._counts[kind] += count

    def line(self, statistics: Statistics | None) -> str:
        """The summary so far; counting begins anew."""
        shown = self._counts.most_common(SHOWN)
        rest = self._counts.total() - sum(count for _, count in shown)
        parts = [" ".join(filter(None, (*kind, str(count)))) for kind, count in shown]
        parts += [f"others {rest}"] if rest else []
        total = self._counts.total()
        self._counts.clear()
        return f"{self._what} {total} ({', '.join(parts)}); {state(statistics or Statistics(is_open=True))}"


def state(statistics: Statistics) -> str:
    """What runs, what waits, and the fullest engines."""
    hottest = sorted(statistics.instances, key=lambda row: -(row.level or 0.0))[:3]
    engines = "".join(f"; {_engine(row)}" for row in hottest)
    return f"running {statistics.running}, queued {statistics.queued}{engines}."


def _engine(row: InstanceStatistics) -> str:
    level = "unknown" if row.level is None else f"{row.level:.0%}"
    return f"KV of {row.name} {level}, watermark {row.high_watermark:.0%}, signal {row.state}"
