"""Events as log lines: what an operator wants to read at three in the morning, and no more.

Law of this file: one line a state change; refusals are summed up once in ten seconds, since a line
for each would be a second flood. (At level DEBUG there is one for each.) Every line says whose it is:
servers that have set up no logging for us print the bare text. What ends a bad state is as loud as its
beginning, since they print warnings only.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from tidegate.core.statistics import InstanceStatistics, Statistics
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.telemetry.rows import ROW_OF, Row, Rows
from tidegate.telemetry.summary import RefusalSummary, state

SUMMARY_INTERVAL_S = 10.0
FAULT_INTERVAL_S = 60.0  # between two traces of the same kind of fault
MOST_FAULTS = 64  # kinds told apart
_DIGITS = re.compile(r"\d+")
_ADVICE = {
    "stale": "The engine answers late; the safety margin grows with the age of the reading.",
    "blind": "No level can be read, and probe.on_blind rules; `tidegate check` says what it tries.",
    "frozen": "Readings come and nothing in them moves: see that the address is the serving engine's.",
    "stalled": "Work waits and the engine's counters stand still: look at its log; if it hangs, restart it.",
    "asleep": "Requests are answered 503 until it wakes.",
}


if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # generic at run time from Python 3.11 on


class _Ours(_Adapter):
    """Begins each line with our name."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"Tidegate: {msg}", kwargs


_LET_GO = {
    "idle": "the engine's own figures leave no room for it",
    "expired": "nobody has asked for it for too long",
    "crowded": "too many are held",
}

_details = logging.getLogger("tidegate")
logger = _Ours(_details, {})


def be_heard() -> None:
    """See that our warnings are shown where others have set the root logger to errors only.

    vLLM's API server imports a package that does; no operator has asked for it. A level that somebody has
    given to our own logger stands.
    """
    if _details.level == logging.NOTSET and _details.getEffectiveLevel() > logging.WARNING:
        _details.setLevel(logging.WARNING)


class LogHook:
    """Writes state changes at once and refusals as a summary."""

    def __init__(self, clock: Callable[[], float], interval_s: float = SUMMARY_INTERVAL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._summaries = {
            EventKind.REFUSED: RefusalSummary(),
            EventKind.SHADOWED: RefusalSummary("Shadow: would have held or refused"),
        }
        self._refused = Rows(self._summaries[EventKind.REFUSED].take_rows)
        self.rows = {EventKind.REFUSED: self._take_refused}
        self._statistics: Statistics | None = None  # of the last tick
        self._summary_due_at = clock()
        self._probe_failures: dict[str, str] = {}
        self._poor: set[str] = set()  # engines whose signal has been said to be poor
        self._traced_at: dict[tuple[str, str], float] = {}
        self._untraced: Counter[tuple[str, str]] = Counter()
        self._disputed: set[str] = set()  # engines whose capacity has been said to be in dispute
        self._writers: dict[EventKind, Callable[[AdmissionEvent], None]] = {
            EventKind.REFUSED: self._on_refused,
            EventKind.SHADOWED: self._summaries[EventKind.SHADOWED].take,
            EventKind.TICK: self._on_tick,
            EventKind.LET_GO: self._on_let_go,
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
        self._take_refused(ROW_OF[event.kind](event))

    def _take_refused(self, row: Row) -> None:
        self._refused.append(row)
        if not _details.isEnabledFor(logging.DEBUG):
            return
        tenant, priority_class, reason, waited_s, retry_after_s, request_id = row
        logger.debug(
            "Refused %s of %s (class %s): %s after %.3f s, retry after %s s; %s",
            request_id,
            tenant or "unknown",
            priority_class or "unknown",
            reason,
            waited_s,
            "no" if retry_after_s is None else f"{retry_after_s:.3f}",
            state(self._statistics or Statistics(is_open=True)),
        )

    def _on_tick(self, event: AdmissionEvent) -> None:
        self._statistics = event.statistics
        self._refused.add_up()
        for instance in event.statistics.instances if event.statistics else ():
            if instance.capacity_disputed != (instance.name in self._disputed):
                self._on_dispute(instance)
        now = self._clock()
        if now < self._summary_due_at:
            return
        for summary in filter(None, self._summaries.values()):
            self._summary_due_at = now + self._interval_s
            logger.warning("%s", summary.line(event.statistics))

    def _on_dispute(self, instance: InstanceStatistics) -> None:
        self._disputed ^= {instance.name}
        if not instance.capacity_disputed:
            logger.warning("Capacity of %s: what it states and what is measured agree again.", instance.name)
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
        """The first of a kind in a minute with its trace; of the others there may be thousands."""
        kind, now = (event.reason, type(event.error).__name__), self._clock()
        if now - self._traced_at.get(kind, -FAULT_INTERVAL_S) < FAULT_INTERVAL_S:
            self._untraced[kind] += 1
            return
        if len(self._traced_at) >= MOST_FAULTS:
            self._traced_at.clear()
            self._untraced.clear()
        self._traced_at[kind] = now
        more = self._untraced.pop(kind, 0)
        logger.error(
            "fault in %s: %s.%s A request that meets one on its way in follows on_internal_error; "
            "one that is being served goes on.",
            event.reason,
            event.detail,
            f" {more} more of the kind since the last trace." if more else "",
            exc_info=event.error,
        )

    def _on_pass_through(self, event: AdmissionEvent) -> None:
        logger.critical("%s", event.detail)

    def _on_let_go(self, event: AdmissionEvent) -> None:
        logger.debug("Let go of a background response whose end was not seen: %s.", _LET_GO[event.reason])

    def _on_mode(self, event: AdmissionEvent) -> None:
        logger.warning("Mode is now %s (%s).", event.reason, event.detail)

    def _on_draining(self, event: AdmissionEvent) -> None:
        logger.warning(
            "Draining: new and queued requests get a 503 with Retry-After; running ones end. %s", event.detail
        )

    def _on_probe_failed(self, event: AdmissionEvent) -> None:
        kind = _DIGITS.sub("", event.detail)  # an impossible figure is another one with every reading
        if self._probe_failures.get(event.instance) == kind:
            return  # said already; the signal's state is on the gauge
        self._probe_failures[event.instance] = kind
        logger.warning("Probe of %s failed: %s", event.instance or "the engine", event.detail)

    def _on_signal(self, event: AdmissionEvent) -> None:
        was_poor = event.instance in self._poor
        if event.reason == "fresh":
            self._probe_failures.pop(event.instance, None)
            self._poor.discard(event.instance)
        else:
            self._poor.add(event.instance)
        level = logging.WARNING if event.reason != "fresh" or was_poor else logging.INFO
        advice = _ADVICE.get(event.reason)
        said = f" {advice}" if advice else ""
        logger.log(level, "Signal of %s is now %s.%s", event.instance, event.reason, said)
