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

from tidegate.telemetry.events import EventKind
from tidegate.telemetry.rows import Row, Rows

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

    def add(self, value: float, count: int = 1) -> None:
        """So many observations of this value."""
        self.counts[bisect_left(self._bounds, value)] += count
        self.total += value * count


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


class Sums:
    """The sums of all classes; what comes is set aside as rows (see `rows.ROW_OF`) and added up at a look.

    Args:
        bounds: of the histograms.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._by_class: dict[str, ClassSums] = {}
        self._lock = Lock()
        self._rows = {
            EventKind.ADMITTED: Rows(self._admitted, self._lock),
            EventKind.REFUSED: Rows(self._refused, self._lock),
            EventKind.FIRST_BYTE: Rows(self._first_bytes, self._lock),
            EventKind.ENDED: Rows(self._ended, self._lock),
        }
        self.takers: dict[EventKind, Callable[[Row], None]] = {
            kind: rows.append for kind, rows in self._rows.items()
        }
        """By kind of event: what takes its row."""

    def taken(self) -> dict[str, ClassSums]:
        """All of them, which are nobody else's from now on."""
        for rows in self._rows.values():
            rows.add_up()
        with self._lock:
            taken, self._by_class = self._by_class, {}
        return taken

    def _of(self, name: str) -> ClassSums:
        name = name or UNKNOWN_CLASS
        sums = self._by_class.get(name)
        if sums is None:
            sums = self._by_class[name] = ClassSums(self._bounds)
        return sums

    def _admitted(self, rows: list[Row]) -> None:
        for (name, waited_s), count in Tally(rows).items():  # most have waited for nothing
            sums = self._of(name)
            sums.admitted += count
            sums.wait.add(waited_s, count)

    def _refused(self, rows: list[Row]) -> None:
        for (name, reason), count in Tally((name, reason) for _, name, reason, *_ in rows).items():
            self._of(name).refused[reason] += count

    def _first_bytes(self, rows: list[Row]) -> None:
        for name, duration_s in rows:
            self._of(name).first_byte.add(duration_s)

    def _ended(self, rows: list[Row]) -> None:
        for name, status, duration_s, prompt_tokens, output_tokens in rows:
            sums = self._of(name)
            sums.ended[status] += 1
            sums.duration.add(duration_s)
            sums.prompt_tokens += prompt_tokens
            sums.output_tokens += output_tokens


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
