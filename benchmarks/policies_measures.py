"""Figures drawn from a finished world.

Law of this file: arithmetic on jobs and marks; no simulation, no targets.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from benchmarks.policies_world import Job, World


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value with at least `share` of all at or below it; NaN for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def jain(values: Iterable[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    shares = list(values)
    squares = sum(value * value for value in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan


def tokens_per_s(world: World, from_s: float, until_s: float) -> float:
    """Output tokens generated per second between two marks; each token counts once."""
    first, last = world.marks[from_s], world.marks[until_s]
    return (last["generated"] - first["generated"]) / (last["at"] - first["at"])


def preemptions_per_1000(world: World, until_s: float = math.inf) -> float:
    """Preemptions per 1,000 requests completed (to the end, or to a mark)."""
    done = sum(job.finished_s is not None for job in world.jobs)
    return 1000.0 * world.engine.preemptions / max(1, done)


def completions_per_s(jobs: Iterable[Job], from_s: float, until_s: float) -> float:
    """Completions per second in a window; its inverse is the mean slot-release time."""
    done = sum(job.finished_s is not None and from_s <= job.finished_s < until_s for job in jobs)
    return done / (until_s - from_s)


def waits(
    jobs: Iterable[Job], priority_class: str, from_s: float = 0.0, until_s: float = math.inf
) -> list[float]:
    """Seconds from a request's latest try to its start, for one class and one window of arrivals."""
    return [
        job.granted_s - job.offered_s
        for job in jobs
        if job.priority_class == priority_class
        and job.granted_s is not None
        and from_s <= job.arrives_s < until_s
    ]


def responses(jobs: Iterable[Job], tenant: str, from_s: float, until_s: float) -> list[float]:
    """Seconds from first arrival to the last token, for one tenant and one window of arrivals."""
    return [
        job.finished_s - job.arrives_s
        for job in jobs
        if job.tenant == tenant and job.finished_s is not None and from_s <= job.arrives_s < until_s
    ]


def service(jobs: Iterable[Job], from_s: float, until_s: float) -> dict[str, float]:
    """Weighted tokens (input + 2 x output) of each tenant's requests that were started in a window."""
    totals: dict[str, float] = defaultdict(float)
    for job in jobs:
        if job.granted_s is not None and from_s <= job.granted_s < until_s:
            totals[job.tenant] += job.prompt + 2 * job.output
    return dict(totals)
