"""Leases of ours that the engine cannot have, by what it says itself.

Law of this file: pure; told the time; only what is certain counts. A request that runs or waits in the
engine may be anybody's, so each of them may be one of those leases, except where a stream of ours was
under way at that moment. One reading proves nothing (gauges move with the engine's steps, and a response
that calls tools rests between two of them): it takes several in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.core.statistics import InstanceStatistics

READINGS = 5
QUIET_S = 10.0  # from the first of them to the last, at least
_TELLING = frozenset({"fresh", "stalled"})  # an engine that is thought to hang may just have nothing to do


class Surplus:
    """Compares a number of leases with the engine's own, reading after reading."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._run: list[tuple[float, int]] = []

    def take(
        self,
        instances: Sequence[InstanceStatistics],
        held_since: Sequence[float],
        streams_at: Callable[[float], int],
        now: float,
    ) -> int:
        """How many of the oldest leases the engine does not have; called about once a second.

        Args:
            instances: of which any may run any lease, so all of them must tell.
            held_since: instants since which the leases are held, oldest first.
            streams_at: the streams of other leases that were surely in the engine at that instant.
            now: seconds on the same clock.
        """
        if not (held_since and instances) or not all(_tells(instance) for instance in instances):
            self._run.clear()
            return 0
        read_at = now - max(instance.age_s or 0.0 for instance in instances)
        if read_at <= self._read_at + 1e-6:
            return 0  # nothing new
        self._read_at = read_at
        in_engine = sum(_in_engine(instance) for instance in instances)
        older = sum(since < read_at for since in held_since)
        surplus = min(older, older + streams_at(read_at) - in_engine)
        if surplus <= 0:
            self._run.clear()
            return 0
        self._run.append((read_at, surplus))
        if len(self._run) < READINGS or read_at - self._run[0][0] < QUIET_S:
            return 0
        gone = min(surplus for _, surplus in self._run)
        self._run.clear()
        return gone


def _tells(instance: InstanceStatistics) -> bool:
    return (
        instance.state in _TELLING
        and instance.age_s is not None
        and instance.running_in_engine is not None
        and instance.waiting_in_engine is not None
    )


def _in_engine(instance: InstanceStatistics) -> int:
    return (instance.running_in_engine or 0) + (instance.waiting_in_engine or 0)
