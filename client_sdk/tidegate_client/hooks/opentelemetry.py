"""Waits as events on the current OpenTelemetry span, and as a histogram.

Law: only the API is imported; without an SDK configured everything here does nothing.
"""

from __future__ import annotations

from ..core.events import WaitEvent
from ..waits import OnWait


def trace_waits() -> OnWait:
    """A listener that adds a `tidegate.wait` event to the current span and records
    `tidegate.client.wait.duration`.

    Raises:
        ModuleNotFoundError: without `opentelemetry-api`.
    """
    from opentelemetry import metrics, trace

    meter = metrics.get_meter("tidegate_client")
    durations = meter.create_histogram(
        "tidegate.client.wait.duration", unit="s", description="Length of waits as told."
    )

    def record(event: WaitEvent) -> None:
        attributes: dict[str, str | int | float] = {
            "server.origin": event.origin,
            "tidegate.scope": event.scope,
        }
        durations.record(event.wait_s, attributes)
        told: dict[str, str | int | float] = {
            "tidegate.wait_s": event.wait_s,
            "tidegate.reason": event.reason,
            "tidegate.source": event.source,
            "http.request.resend_count": event.attempt - 1,
        }
        trace.get_current_span().add_event("tidegate.wait", {**attributes, **told})

    return record
