"""Events as log lines: what an operator wants to read at three in the morning, and no more.

Law of this file: one line a state change; refusals are summed up once in ten seconds, since a line
for each would be a second flood. (At level DEBUG there is one for each.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegate.core.decisions import InstanceStatistics, Statistics
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.telemetry.summary import RefusalSummary, state

logger = logging.getLogger("tidegate")

SUMMARY_INTERVAL_S = 10.0


class LogHook:
    """Writes state changes at once and refusals as a summary."""

    def __init__(self, clock: Callable[[], float], interval_s: float = SUMMARY_INTERVAL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._refused = RefusalSummary()
        self._statistics: Statistics | None = None  # of the last tick
        self._summary_due_at = clock()
        self._probe_failures: dict[str, str] = {}
        self._disputed: set[str] = set()  # engines whose capacity has been said to be in dispute
        self._writers: dict[EventKind, Callable[[AdmissionEvent], None]] = {
            EventKind.REFUSED: self._on_refused,
            EventKind.TICK: self._on_tick,
            EventKind.FAULT: self._on_fault,
            EventKind.PASS_THROUGH: self._on_pass_through,
            EventKind.MODE: self._on_mode,
            EventKind.DRAINING: self._on_draining,
            EventKind.PROBE_FAILED: self._on_probe_failed,
            EventKind.SIGNAL: self._on_signal,
        }
        self.kinds = frozenset(self._writers)

    def __call__(self, event: AdmissionEvent) -> None:
        writer = self._writers.get(event.kind)
        if writer is not None:
            writer(event)

    def _on_refused(self, event: AdmissionEvent) -> None:
        self._refused.take(event)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "Refused %s (class %s): %s after %.3f s, retry after %s s; %s",
                event.tenant or "unknown",
                event.priority_class or "unknown",
                event.reason,
                event.waited_s,
                "no" if event.retry_after_s is None else f"{event.retry_after_s:.3f}",
                state(self._statistics or Statistics(is_open=True)),
            )

    def _on_tick(self, event: AdmissionEvent) -> None:
        self._statistics = event.statistics
        for instance in event.statistics.instances if event.statistics else ():
            if instance.capacity_disputed != (instance.name in self._disputed):
                self._on_dispute(instance)
        now = self._clock()
        if not self._refused or now < self._summary_due_at:
            return
        self._summary_due_at = now + self._interval_s
        logger.warning("%s", self._refused.line(event.statistics))

    def _on_dispute(self, instance: InstanceStatistics) -> None:
        self._disputed ^= {instance.name}
        if not instance.capacity_disputed:
            logger.info("Capacity of %s: what it states and what is measured agree again.", instance.name)
            return
        logger.warning(
            "Capacity of %s: it states %.0f tokens, its level says %.0f. The gate goes by %.0f; "
            "set kv.capacity_tokens if you know better.",
            instance.name,
            instance.stated_capacity_tokens or 0.0,
            instance.learnt_capacity_tokens or 0.0,
            instance.capacity_tokens or 0.0,
        )

    def _on_fault(self, event: AdmissionEvent) -> None:
        logger.error(
            "Tidegate fault in %s: %s. The request follows on_internal_error.", event.reason, event.detail
        )

    def _on_pass_through(self, event: AdmissionEvent) -> None:
        logger.critical("%s", event.detail)

    def _on_mode(self, event: AdmissionEvent) -> None:
        logger.warning("Mode is now %s (%s).", event.reason, event.detail)

    def _on_draining(self, event: AdmissionEvent) -> None:
        logger.warning(
            "Draining: new and queued requests get a 503 with Retry-After; running ones end. %s", event.detail
        )

    def _on_probe_failed(self, event: AdmissionEvent) -> None:
        if self._probe_failures.get(event.instance) == event.detail:
            return  # said already; the signal's state is on the gauge
        self._probe_failures[event.instance] = event.detail
        logger.warning("Probe of %s failed: %s", event.instance or "the engine", event.detail)

    def _on_signal(self, event: AdmissionEvent) -> None:
        if event.reason == "fresh":
            self._probe_failures.pop(event.instance, None)
        level = logging.INFO if event.reason == "fresh" else logging.WARNING
        logger.log(level, "Signal of %s is now %s. %s", event.instance, event.reason, event.detail)
