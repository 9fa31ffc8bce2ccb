"""Statistics as plain JSON data, and the last minutes of them.

Law of this file: pure and bounded. It takes a snapshot and the time and gives back dictionaries; it
keeps at most `HISTORY_POINTS` points and lists at most `MAX_TENANTS` tenants, whatever the load. A
figure that is not known is null, never 0. No key, token or request text is in a `Statistics`, so none
can be here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.core.statistics import InstanceStatistics, Statistics, TenantStatistics

SCHEMA = 1
HISTORY_POINTS = 300  # five minutes at one point a second
MAX_TENANTS = 20
MAX_INSTANCES = 16


@dataclass(frozen=True, slots=True)
class Point:
    """One second of the past. Shares are 0..1 of the hottest instance, rates are per second."""

    at_s: float
    level: float | None
    peak: float | None
    watermark: float | None
    queued: int
    running: int
    oldest_wait_s: float
    admitted_per_s: float
    refused_per_s: float
    preemptions_per_s: float
    faults: int  # unexpected exceptions of the gate itself, since the start


@dataclass(frozen=True, slots=True)
class _Totals:
    at_s: float
    admitted: float
    refused: float
    preemptions: float


class History:
    """The last minutes, one point a second."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=HISTORY_POINTS)
        self._last: _Totals | None = None

    def record(self, statistics: Statistics, now: float, faults: int = 0) -> Point:
        """Add a point; `now` is monotonic seconds, `faults` a running count.

        Counters that went back (a restart) count as still.
        """
        totals = _Totals(
            now,
            statistics.admitted,
            sum(statistics.refused.values()),
            sum(instance.preemptions for instance in statistics.instances),
        )
        last = self._last or totals
        span_s = max(now - last.at_s, 1e-3)
        hottest = _hottest(statistics.instances)
        point = Point(
            at_s=round(now, 3),
            level=_rounded(hottest.level if hottest else None),
            peak=_rounded(_peak_share(hottest) if hottest else None),
            watermark=hottest.high_watermark if hottest else None,
            queued=statistics.queued,
            running=statistics.running,
            oldest_wait_s=round(max((row.oldest_wait_s for row in statistics.classes), default=0.0), 3),
            admitted_per_s=_rate(totals.admitted - last.admitted, span_s),
            refused_per_s=_rate(totals.refused - last.refused, span_s),
            preemptions_per_s=_rate(totals.preemptions - last.preemptions, span_s),
            faults=faults,
        )
        self._last = totals
        self._points.append(point)
        return point

    def columns(self) -> dict[str, list[float | None]]:
        """Every series by name, oldest first."""
        return {name: [getattr(point, name) for point in self._points] for name in Point.__slots__}


def describe(
    statistics: Statistics,
    mode: str,
    version: str,
    wall_time_s: float,
    refused_lately: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The present, as `state.json` tells it.

    Args:
        wall_time_s: epoch seconds.
        refused_lately: refusals of the last minute by tenant.
    """
    refused = refused_lately or {}
    tenants = _tenants(statistics, refused)
    return {
        "schema": SCHEMA,
        "version": version,
        "mode": mode,
        "time": round(wall_time_s, 3),
        "is_open": statistics.is_open,
        "queued": statistics.queued,
        "queued_bytes": statistics.queued_bytes,
        "running": statistics.running,
        "admitted": statistics.admitted,
        "completions_per_s": round(statistics.completions_per_s, 3),
        "booked_slots": statistics.booked_slots,
        "instances": [_instance(row) for row in statistics.instances[:MAX_INSTANCES]],
        "instances_hidden": max(0, len(statistics.instances) - MAX_INSTANCES),
        "classes": [asdict(row) for row in statistics.classes],
        "tenants": [
            {**asdict(row), "refused_last_minute": refused.get(row.name, 0)} for row in tenants[:MAX_TENANTS]
        ],
        "tenants_hidden": max(0, len(tenants) - MAX_TENANTS),
        "refused": dict(sorted(statistics.refused.items(), key=lambda pair: -pair[1])),
    }


def _instance(row: InstanceStatistics) -> dict[str, Any]:
    return {**asdict(row), "projected_peak": _rounded(_peak_share(row))}


def _peak_share(row: InstanceStatistics) -> float | None:
    return row.projected_peak_tokens / row.capacity_tokens if row.capacity_tokens else None


def _hottest(instances: Sequence[InstanceStatistics]) -> InstanceStatistics | None:
    known = [row for row in instances if row.level is not None]
    return max(known, key=lambda row: row.level or 0.0, default=instances[0] if instances else None)


def _tenants(statistics: Statistics, refused: Mapping[str, int]) -> list[TenantStatistics]:
    """Heaviest first; whoever is refused all it sends has no work here, and is the one to be seen."""
    rows = list(statistics.tenants)
    if refused:
        known = {row.name for row in rows}
        rows += [
            TenantStatistics(name=name, priority_class="", queued=0, running=0, virtual_tokens=0.0)
            for name in refused.keys() - known
        ]
    return sorted(
        rows,
        key=lambda row: (row.queued + row.running + refused.get(row.name, 0), row.queued),
        reverse=True,
    )


def _rate(difference: float, span_s: float) -> float:
    return round(max(0.0, difference) / span_s, 2)


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
