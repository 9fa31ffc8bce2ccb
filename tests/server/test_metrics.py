"""Events as Prometheus metrics: counted under bounded labels, and never in the way."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics import MetricWrapperBase

from tests.server.snapshots import INSTANCE, STATISTICS
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.telemetry.prometheus import (
    FORGET_AFTER_TICKS,
    SIGNAL_STATES,
    WAIT_BUCKETS_S,
    PrometheusHook,
    prometheus_hook,
)

WAITS = [0.0, 0.004, 0.005, 0.0051, 0.3, 59.9, 60.0, 1e6]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_events_are_counted_under_bounded_labels(registry: CollectorRegistry) -> None:
    """Each kind lands in its metric."""
    hook = PrometheusHook(registry)
    hook(AdmissionEvent(kind=EventKind.ADMITTED, priority_class="vip", waited_s=0.3))
    hook(AdmissionEvent(kind=EventKind.REFUSED, priority_class="batch", reason="queue_full"))
    hook(AdmissionEvent(kind=EventKind.LEFT))
    hook(
        AdmissionEvent(
            kind=EventKind.ENDED, priority_class="vip", status=200, output_tokens=7, prompt_tokens=5
        )
    )
    hook(AdmissionEvent(kind=EventKind.ENDED, priority_class="vip"))
    hook(AdmissionEvent(kind=EventKind.FAULT, reason="offer"))
    hook(AdmissionEvent(kind=EventKind.SHADOWED, priority_class="vip", reason="queued"))
    hook(AdmissionEvent(kind=EventKind.PROBE_FAILED, instance="a"))
    hook(AdmissionEvent(kind=EventKind.FIRST_BYTE, priority_class="vip", duration_s=0.1))
    assert value(registry, "tidegate_admitted_total", **{"class": "vip"}) == 1
    assert value(registry, "tidegate_queue_wait_seconds_sum", **{"class": "vip"}) == 0.3
    assert value(registry, "tidegate_refused_total", **{"class": "batch", "reason": "queue_full"}) == 1
    assert value(registry, "tidegate_left_total", **{"class": "unknown"}) == 1
    assert value(registry, "tidegate_ended_total", **{"class": "vip", "status": "2xx"}) == 1
    assert value(registry, "tidegate_ended_total", **{"class": "vip", "status": "none"}) == 1
    assert value(registry, "tidegate_output_tokens_total", **{"class": "vip"}) == 7
    assert value(registry, "tidegate_faults_total", where="offer") == 1
    assert value(registry, "tidegate_shadowed_total", **{"class": "vip", "reason": "queued"}) == 1
    assert value(registry, "tidegate_probe_failures_total", engine="a") == 1
    assert value(registry, "tidegate_time_to_first_byte_seconds_count", **{"class": "vip"}) == 1


def test_the_snapshot_is_mirrored_and_the_unknown_is_left_out(registry: CollectorRegistry) -> None:
    """An unknown figure is absent, never 0."""
    PrometheusHook(registry)(AdmissionEvent(kind=EventKind.TICK, statistics=STATISTICS))
    assert value(registry, "tidegate_queued_requests", **{"class": "vip"}) == 2
    assert value(registry, "tidegate_oldest_wait_seconds", **{"class": "vip"}) == 0.7
    assert value(registry, "tidegate_kv_level_ratio", engine="default") == 0.5
    assert value(registry, "tidegate_engine_waiting_requests", engine="default") is None
    assert value(registry, "tidegate_signal_state", engine="default", state="fresh") == 1
    assert value(registry, "tidegate_signal_state", engine="default", state="blind") == 0


def test_an_engine_that_is_forgotten_is_no_alarm_for_ever(registry: CollectorRegistry) -> None:
    """The placeholder before an engine's first reading is blind; its series go when it does."""
    hook = PrometheusHook(registry)
    blind = replace(STATISTICS, instances=(replace(INSTANCE, state="blind"),))
    named = replace(STATISTICS, instances=(replace(INSTANCE, name="a:1"),))
    hook(AdmissionEvent(kind=EventKind.TICK, statistics=blind))
    assert value(registry, "tidegate_signal_state", engine="default", state="blind") == 1
    for _ in range(FORGET_AFTER_TICKS):
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=named))
    left = [
        sample.name
        for metric in registry.collect()
        for sample in metric.samples
        if sample.labels.get("engine") == "default"
    ]
    assert left == []
    assert value(registry, "tidegate_signal_state", engine="a:1", state="fresh") == 1
    hook(AdmissionEvent(kind=EventKind.TICK, statistics=blind))
    assert value(registry, "tidegate_signal_state", engine="default", state="blind") == 1, "it may return"


def test_a_forgotten_engine_of_unknown_figures_stops_no_gauge(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest library that is allowed raises for a series that was never set."""

    def remove(metric: MetricWrapperBase, *labels: str) -> None:
        del metric._metrics[labels]

    monkeypatch.setattr(MetricWrapperBase, "remove", remove)
    hook = PrometheusHook(registry)
    unknown = replace(INSTANCE, state="blind", level=None, age_s=None, capacity_tokens=None)
    hook(AdmissionEvent(kind=EventKind.TICK, statistics=replace(STATISTICS, instances=(unknown,))))
    for _ in range(FORGET_AFTER_TICKS):
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=replace(STATISTICS, instances=())))
    assert value(registry, "tidegate_signal_state", engine="default", state="blind") is None


def test_where_series_cannot_be_removed_a_forgotten_engine_is_in_no_state(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes: the library keeps every series, and would warn at each removal."""
    hook = PrometheusHook(registry)
    hook(AdmissionEvent(kind=EventKind.TICK, statistics=STATISTICS))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "anywhere")
    for _ in range(FORGET_AFTER_TICKS):
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=replace(STATISTICS, instances=())))
    states = [
        value(registry, "tidegate_signal_state", engine="default", state=state) for state in SIGNAL_STATES
    ]
    assert states == [0] * len(SIGNAL_STATES)


def test_engines_of_another_middleware_are_not_forgotten(registry: CollectorRegistry) -> None:
    """Two of them in one process share a hook and tick in turns."""
    hook = PrometheusHook(registry)
    other = replace(STATISTICS, instances=(replace(INSTANCE, name="a:1"),))
    for _ in range(FORGET_AFTER_TICKS * 2):
        for statistics in (STATISTICS, other):
            hook(AdmissionEvent(kind=EventKind.TICK, statistics=statistics))
    for engine in ("default", "a:1"):
        assert value(registry, "tidegate_signal_state", engine=engine, state="fresh") == 1


def test_modes_pass_through_and_draining_are_gauges(registry: CollectorRegistry) -> None:
    """What an alert is made of."""
    hook = PrometheusHook(registry)
    hook(AdmissionEvent(kind=EventKind.MODE, reason="shadow"))
    hook(AdmissionEvent(kind=EventKind.PASS_THROUGH, reason="opened"))
    hook(AdmissionEvent(kind=EventKind.DRAINING))
    assert value(registry, "tidegate_mode", mode="shadow") == 1
    assert value(registry, "tidegate_mode", mode="enforce") == 0
    assert value(registry, "tidegate_pass_through") == 1
    assert value(registry, "tidegate_draining") == 1
    hook(AdmissionEvent(kind=EventKind.PASS_THROUGH, reason="closed"))
    assert value(registry, "tidegate_pass_through") == 0


def test_one_registry_has_one_hook(registry: CollectorRegistry) -> None:
    """Two middlewares in one process register each name once."""
    assert prometheus_hook(registry) is prometheus_hook(registry)


def test_the_reference_lists_every_metric_with_its_type_and_labels(registry: CollectorRegistry) -> None:
    """The documentation cannot fall behind."""
    hook = PrometheusHook(registry)
    real = {}
    for metric in filter(lambda value: isinstance(value, MetricWrapperBase), vars(hook).values()):
        name = metric._name + ("_total" if metric._type == "counter" else "")
        real[name] = (metric._type, ", ".join(metric._labelnames))
    rows = re.findall(r"^\| `(tidegate_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", REFERENCE.read_text(), re.MULTILINE)
    assert {name: (kind, labels) for name, kind, labels in rows} == real


def test_a_disputed_capacity_is_a_gauge(registry: CollectorRegistry) -> None:
    """0 while there is no dispute, so that an alert can tell it from silence."""
    hook = PrometheusHook(registry)
    for disputed in (False, True):
        row = replace(INSTANCE, capacity_disputed=disputed, stated_capacity_tokens=16_384.0)
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=replace(STATISTICS, instances=(row,))))
        assert value(registry, "tidegate_kv_capacity_disputed", engine="default") == disputed
    assert value(registry, "tidegate_kv_stated_capacity_tokens", engine="default") == 16_384


def test_what_is_added_up_is_what_the_library_would_have_counted(registry: CollectorRegistry) -> None:
    """Bucket for bucket, bounds included, however often it is scraped in between."""
    plain = Histogram("plain", "x", registry=registry, buckets=WAIT_BUCKETS_S)
    hook = PrometheusHook(registry)
    for wait_s in WAITS:
        plain.observe(wait_s)
        hook(AdmissionEvent(kind=EventKind.ADMITTED, priority_class="vip", waited_s=wait_s))
        assert value(registry, "tidegate_admitted_total", **{"class": "vip"}) == value(
            registry, "plain_count"
        )
    for bound in [str(float(bound)) for bound in WAIT_BUCKETS_S] + ["+Inf"]:
        ours = value(registry, "tidegate_queue_wait_seconds_bucket", **{"class": "vip", "le": bound})
        assert ours == value(registry, "plain_bucket", le=bound)
    assert value(registry, "tidegate_queue_wait_seconds_sum", **{"class": "vip"}) == sum(WAITS)


def test_nothing_is_lost_between_threads(registry: CollectorRegistry) -> None:
    """A scrape may run in a thread of its own while requests are counted."""
    hook = PrometheusHook(registry)
    event = AdmissionEvent(kind=EventKind.ADMITTED, priority_class="vip", waited_s=0.1)

    def count() -> None:
        for _ in range(2000):
            hook(event)

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(registry.collect())
    assert value(registry, "tidegate_admitted_total", **{"class": "vip"}) == 4000
    assert value(registry, "tidegate_queue_wait_seconds_count", **{"class": "vip"}) == 4000


def test_the_sums_reach_the_metrics_once_a_second_too(registry: CollectorRegistry) -> None:
    """Where several processes share a directory, a scrape does not come by here."""
    hook = PrometheusHook(registry)
    hook(AdmissionEvent(kind=EventKind.ADMITTED, priority_class="vip"))
    hook(AdmissionEvent(kind=EventKind.TICK, statistics=STATISTICS))
    [metric] = hook.admitted.collect()
    assert metric.samples[0].value == 1
