"""Waits as Prometheus metrics of the calling process.

Law: labels are bounded: the origin and the scope; reasons come from servers and are no labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.events import WaitEvent
from ..waits import OnWait

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 60, 120)


def count_waits(registry: CollectorRegistry | None = None) -> OnWait:
    """A listener that counts waits and their lengths: `tidegate_client_waits_total`,
    `tidegate_client_wait_seconds`.

    A wait that grows is counted again, by what it grew to.

    Raises:
        ModuleNotFoundError: without `prometheus-client`.
        ValueError: when the registry already has these metrics; make one listener per registry.
    """
    import prometheus_client

    where = registry or prometheus_client.REGISTRY
    labels = ("origin", "scope")
    waits = prometheus_client.Counter("tidegate_client_waits", "Waits begun.", labels, registry=where)
    seconds = prometheus_client.Histogram(
        "tidegate_client_wait_seconds", "Length of waits as told.", labels, registry=where, buckets=_BUCKETS_S
    )

    def count(event: WaitEvent) -> None:
        waits.labels(event.origin, event.scope).inc()
        seconds.labels(event.origin, event.scope).observe(event.wait_s)

    return count
