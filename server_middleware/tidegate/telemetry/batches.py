"""What every request moves, added up by hand and handed to Prometheus now and then.

Law of this file: no figure is lost or told twice, whichever thread asks for them. Counting through the
library costs a request several times as much as adding up does; so it is done once per scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidegate.telemetry.events import AdmissionEvent, EventKind

UNKNOWN_CLASS = "unknown"


class BatchHistogram(Histogram):
    """A histogram that takes many observations at once."""

    def take(self, bins: Bins) -> None:
        """Adds everything in `bins`, which must have the same bounds."""
        self._sum.inc(bins.total)
        for bucket, count in zip(self._buckets, bins.counts, strict=True):
            if count:
                bucket.inc(count)


class Bins:
    """Observations by the bucket they fall into.

    Args:
        bounds: upper bounds, ascending, without infinity.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class ClassSums:
    """What the requests of one class have moved since the last time they were handed on."""

    __slots__ = (
        "admitted",
        "duration",
        "ended",
        "first_byte",
        "output_tokens",
        "prompt_tokens",
        "refused",
        "wait",
    )

    def __init__(self, bounds: Sequence[float]) -> None:
        self.admitted = 0
        self.prompt_tokens = self.output_tokens = 0.0
        self.ended: Tally[int] = Tally()  # by status
        self.refused: Tally[str] = Tally()  # by reason
        self.wait, self.first_byte, self.duration = Bins(bounds), Bins(bounds), Bins(bounds)

    def on_admitted(self, event: AdmissionEvent) -> None:
        self.admitted += 1
        self.wait.add(event.waited_s)

    def on_refused(self, event: AdmissionEvent) -> None:
        self.refused[event.reason] += 1

    def on_first_byte(self, event: AdmissionEvent) -> None:
        self.first_byte.add(event.duration_s)

    def on_ended(self, event: AdmissionEvent) -> None:
        self.ended[event.status] += 1
        self.duration.add(event.duration_s)
        self.prompt_tokens += event.prompt_tokens
        self.output_tokens += event.output_tokens


_ADDERS: dict[EventKind, Callable[[ClassSums, AdmissionEvent], None]] = {
    EventKind.ADMITTED: ClassSums.on_admitted,
    EventKind.REFUSED: ClassSums.on_refused,
    EventKind.FIRST_BYTE: ClassSums.on_first_byte,
    EventKind.ENDED: ClassSums.on_ended,
}


class Sums:
    """The sums of all classes, under one lock.

    Args:
        bounds: of the histograms.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._by_class: dict[str, ClassSums] = {}
        self._lock = Lock()

    def add(self, event: AdmissionEvent) -> bool:
        """Adds an event of a request; `False` for one that is none."""
        adder = _ADDERS.get(event.kind)
        if adder is None:
            return False
        name = event.priority_class or UNKNOWN_CLASS
        with self._lock:
            sums = self._by_class.get(name)
            if sums is None:
                sums = self._by_class[name] = ClassSums(self._bounds)
            adder(sums, event)
        return True

    def taken(self) -> dict[str, ClassSums]:
        """All of them, which are nobody else's from now on."""
        with self._lock:
            taken, self._by_class = self._by_class, {}
        return taken


class BeforeScrape(Collector):
    """Hands the sums on before a registry collects what was registered after it.

    Args:
        registry: which collects in the order of registration.
        hand_on: called without arguments.
    """

    def __init__(self, registry: CollectorRegistry, hand_on: Callable[[], None]) -> None:
        self._hand_on = hand_on
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing of its own."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Nothing of its own."""
        self._hand_on()
        return []
