"""Events as Prometheus metrics, in the process's default registry: an engine's own /metrics shows them.

Law of this file: labels are bounded (class, reason, engine, state; never a tenant or a key), every
metric starts with `tidegate_`, and only plain Counter, Gauge and Histogram are used, with a
multiprocess mode each, so that they survive PROMETHEUS_MULTIPROC_DIR.
"""

from __future__ import annotations

import contextlib
import os
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from tidegate.core.statistics import InstanceStatistics, Statistics
from tidegate.telemetry.batches import UNKNOWN_CLASS, BatchHistogram, BeforeScrape, Sums
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.telemetry.rows import ROW_OF

SIGNAL_STATES = ("fresh", "stale", "blind", "frozen", "stalled", "asleep")
MODES = ("enforce", "shadow", "off")
FORGET_AFTER_TICKS = 20  # more than one: several middlewares of a process share a hook, each with its engines
WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60)

_GaugeMode = Literal["livesum", "livemax", "livemostrecent"]


class PrometheusHook:
    """Counts events and mirrors the gate's snapshot once a second."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._sums = Sums(WAIT_BUCKETS_S)
        self.rows = self._sums.takers
        BeforeScrape(registry, self._hand_on)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tidegate_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str, mode: _GaugeMode = "livesum") -> Gauge:
            return Gauge(f"tidegate_{name}", text, labels, registry=registry, multiprocess_mode=mode)

        def histogram(name: str, text: str, *labels: str) -> BatchHistogram:
            return BatchHistogram(f"tidegate_{name}", text, labels, registry=registry, buckets=WAIT_BUCKETS_S)

        most: _GaugeMode = "livemax"
        self.admitted = counter("admitted", "Requests let through", "class")
        self.refused = counter("refused", "Requests refused, by reason code", "class", "reason")
        self.left = counter("left", "Callers that went away while queued", "class")
        self.ended = counter("ended", "Admitted requests that ended, by HTTP status group", "class", "status")
        self.upstream_busy = counter(
            "upstream_busy", "Answers of the app itself that said 429 or 503", "class", "status"
        )
        self.shadowed = counter(
            "shadowed", "Shadow mode: what enforce would have held or refused", "class", "reason"
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests", "class")
        self.output_tokens = counter("output_tokens", "Output tokens of ended requests", "class")
        self.let_go = counter(
            "background_let_go", "Leases of background responses that ended unseen, by reason", "reason"
        )
        self.faults = counter("faults", "Unexpected exceptions of the gate itself", "where")
        self.probe_failures = counter("probe_failures", "Failed reads of the KV level", "engine")
        self.wait = histogram("queue_wait_seconds", "Time from arrival to admission", "class")
        self.first_byte = histogram(
            "time_to_first_byte_seconds", "From admission to the first body byte", "class"
        )
        self.duration = histogram("lease_seconds", "How long admitted requests held their lease", "class")
        self.queued = gauge("queued_requests", "Requests waiting at the gate", "class")
        self.oldest = gauge("oldest_wait_seconds", "Age of the oldest waiting request", "class", mode=most)
        self.running = gauge("running_requests", "Requests holding a lease", "class")
        self.queued_bytes = gauge("queued_bytes", "Body bytes held for waiting requests")
        self.open = gauge("open", "1 while the level lets requests pass", mode=most)
        self.booked = gauge("booked_slots", "Outstanding slots of the retry calendar")
        self.completions = gauge("completions_per_second", "Learnt completion rate")
        self.mode = gauge("mode", "1 for the mode in force", "mode", mode=most)
        self.passing = gauge("pass_through", "1 while repeated faults have opened the gate", mode=most)
        self.draining = gauge("draining", "1 while the server is stopping", mode=most)
        self.level = gauge("kv_level_ratio", "Measured KV usage, 0..1", "engine", mode=most)
        self.age = gauge("kv_level_age_seconds", "Age of the last reading", "engine", mode=most)
        self.watermark = gauge(
            "kv_high_watermark_ratio", "Level above which nothing passes", "engine", mode=most
        )
        self.capacity = gauge("kv_capacity_tokens", "KV capacity in force", "engine", mode=most)
        self.stated = gauge(
            "kv_stated_capacity_tokens", "KV capacity as the engine states it", "engine", mode=most
        )
        self.disputed = gauge(
            "kv_capacity_disputed", "1 while the stated and the learnt capacity disagree", "engine", mode=most
        )
        self.held = gauge("kv_held_tokens", "Tokens charged to leases now", "engine")
        self.peak = gauge("kv_projected_peak_tokens", "Largest future occupancy of the leases", "engine")
        self.margin = gauge("kv_margin_ratio", "Safety margin in force", "engine", mode=most)
        self.prompt_factor = gauge(
            "kv_prompt_factor_ratio", "Learnt measured-to-charged prompts", "engine", mode=most
        )
        self.preemptions = gauge(
            "engine_preemptions", "Preemptions the engine has counted", "engine", mode=most
        )
        self.engine_waiting = gauge(
            "engine_waiting_requests", "Requests in the engine's queue", "engine", mode=most
        )
        self.state = gauge("signal_state", "1 for the state the signal is in", "engine", "state", mode=most)

        self._mirrored: dict[str, tuple[InstanceStatistics, int]] = {}  # with the tick that told of it last
        self._ticks = 0

    def __call__(self, event: AdmissionEvent) -> None:
        take = self.rows.get(event.kind)
        if take is not None:
            take(ROW_OF[event.kind](event))
        elif event.kind is EventKind.TICK and event.statistics is not None:
            self._hand_on()
            self._mirror(event.statistics)
        else:
            self._rare(event.priority_class or UNKNOWN_CLASS, event)

    def _hand_on(self) -> None:
        """Bring the metrics up to the sums."""
        for name, sums in self._sums.taken().items():
            self.admitted.labels(name).inc(sums.admitted)
            self.prompt_tokens.labels(name).inc(sums.prompt_tokens)
            self.output_tokens.labels(name).inc(sums.output_tokens)
            self.wait.labels(name).take(sums.wait)
            self.first_byte.labels(name).take(sums.first_byte)
            self.duration.labels(name).take(sums.duration)
            for status, count in sums.ended.items():
                self.ended.labels(name, f"{status // 100}xx" if status else "none").inc(count)
            for reason, count in sums.refused.items():
                self.refused.labels(name, reason).inc(count)

    def _rare(self, name: str, event: AdmissionEvent) -> None:
        match event.kind:
            case EventKind.LEFT:
                self.left.labels(name).inc()
            case EventKind.UPSTREAM_BUSY:
                self.upstream_busy.labels(name, str(event.status)).inc()
            case EventKind.SHADOWED:
                self.shadowed.labels(name, event.reason).inc()
            case EventKind.LET_GO:
                self.let_go.labels(event.reason).inc()
            case EventKind.FAULT:
                self.faults.labels(event.reason).inc()
            case EventKind.PROBE_FAILED:
                self.probe_failures.labels(event.instance or "engine").inc()
            case EventKind.MODE:
                for mode in MODES:
                    self.mode.labels(mode).set(mode == event.reason)
            case EventKind.PASS_THROUGH:
                self.passing.set(event.reason == "opened")
            case EventKind.DRAINING:
                self.draining.set(1)
            case _:
                pass

    def _mirror(self, statistics: Statistics) -> None:
        self.open.set(statistics.is_open)
        self.queued_bytes.set(statistics.queued_bytes)
        self.booked.set(statistics.booked_slots)
        self.completions.set(statistics.completions_per_s)
        for row in statistics.classes:
            self.queued.labels(row.name).set(row.queued)
            self.running.labels(row.name).set(row.running)
            self.oldest.labels(row.name).set(row.oldest_wait_s)
        self._ticks += 1
        for instance in statistics.instances:
            self._mirrored[instance.name] = (instance, self._ticks)
            for gauge, value in self._figures(instance):
                if value is not None:  # an unknown figure is left out, never shown as 0
                    gauge.labels(instance.name).set(value)
            for state in SIGNAL_STATES:
                self.state.labels(instance.name, state).set(state == instance.state)
        for instance, tick in tuple(self._mirrored.values()):
            if self._ticks - tick >= FORGET_AFTER_TICKS:
                self._drop(instance)

    def _drop(self, instance: InstanceStatistics) -> None:
        """The gate has forgotten this one: what was last true of it must not alarm anybody for ever."""
        del self._mirrored[instance.name]
        for state in SIGNAL_STATES:
            self.state.labels(instance.name, state).set(0)
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            return  # series cannot be removed there
        for gauge, _ in self._figures(instance):
            with contextlib.suppress(
                KeyError
            ):  # of an unknown figure there is none; 0.21 of the library minds
                gauge.remove(instance.name)
        for state in SIGNAL_STATES:
            self.state.remove(instance.name, state)

    def _figures(self, instance: InstanceStatistics) -> list[tuple[Gauge, float | None]]:
        return [
            (self.level, instance.level),
            (self.age, instance.age_s),
            (self.watermark, instance.high_watermark),
            (self.capacity, instance.capacity_tokens),
            (self.stated, instance.stated_capacity_tokens),
            (self.disputed, float(instance.capacity_disputed)),
            (self.held, instance.held_tokens),
            (self.peak, instance.projected_peak_tokens),
            (self.margin, instance.margin),
            (self.prompt_factor, instance.kp),
            (self.preemptions, instance.preemptions),
            (self.engine_waiting, instance.waiting_in_engine),
        ]


_hooks: dict[int, PrometheusHook] = {}


def prometheus_hook(registry: CollectorRegistry = REGISTRY) -> PrometheusHook:
    """The hook of this registry: one for all middlewares of a process, since names register once."""
    key = id(registry)
    if key not in _hooks:
        _hooks[key] = PrometheusHook(registry)
    return _hooks[key]
