"""Events, the log and the metrics: said once, bounded, and never in the way."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics import MetricWrapperBase

from tidegate.core.statistics import ClassStatistics, InstanceStatistics, Statistics
from tidegate.telemetry.events import AdmissionEvent, EventKind, Hooks
from tidegate.telemetry.log import SUMMARY_INTERVAL_S, LogHook
from tidegate.telemetry.prometheus import (
    FORGET_AFTER_TICKS,
    SIGNAL_STATES,
    WAIT_BUCKETS_S,
    PrometheusHook,
    prometheus_hook,
)
from tidegate.telemetry.summary import MOST_KINDS
from tidegate.testing import FakeClock

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
INSTANCE = InstanceStatistics(
    name="default",
    state="fresh",
    level=0.5,
    age_s=0.2,
    capacity_tokens=1000.0,
    held_tokens=400.0,
    projected_peak_tokens=700.0,
    high_watermark=0.82,
    margin=0.05,
    kp=1.0,
    leases=3,
    waiting_in_engine=None,
    running_in_engine=3,
    preemptions=2.0,
)
STATISTICS = Statistics(
    is_open=True,
    instances=(INSTANCE,),
    classes=(ClassStatistics(name="vip", queued=2, running=1, oldest_wait_s=0.7, kv_ceiling=1.0),),
    queued=2,
    running=1,
)


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


def test_refusals_are_summed_up_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each refusal would be a second flood."""
    clock = FakeClock()
    hook = LogHook(clock)
    tick = AdmissionEvent(kind=EventKind.TICK, statistics=STATISTICS)
    with caplog.at_level(logging.INFO, "tidegate"):
        for _ in range(1000):
            hook(
                AdmissionEvent(
                    kind=EventKind.REFUSED, tenant="gold", priority_class="standard", reason="queue_full"
                )
            )
        hook(tick)
        hook(AdmissionEvent(kind=EventKind.REFUSED, priority_class="batch", reason="displaced"))
        hook(tick)
        (line,) = caplog.messages
        assert line.startswith(
            "Tidegate: Refused 1000 (gold standard queue_full 1000); running 1, queued 2; "
        )
        assert "KV of default 50%, watermark" in line
        assert "signal fresh" in line
        clock.advance(SUMMARY_INTERVAL_S)
        hook(tick)
        hook(tick)
    (line,) = caplog.messages[1:]
    assert line.startswith("Tidegate: Refused 1 (batch displaced 1); running 1")


def test_each_refusal_is_a_line_when_debugging(caplog: pytest.LogCaptureFixture) -> None:
    """Who, why, how long it waited, what it was told, and the level, without a credential."""
    hook = LogHook(FakeClock())
    with caplog.at_level(logging.DEBUG, "tidegate"):
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=STATISTICS))
        hook(
            AdmissionEvent(
                kind=EventKind.REFUSED,
                tenant="gold",
                priority_class="vip",
                reason="wait_expired",
                waited_s=2.5,
                retry_after_s=3.25,
                request_id="req-7",
            )
        )
    (line,) = caplog.messages
    assert line.startswith(
        "Tidegate: Refused req-7 of gold (class vip): wait_expired after 2.500 s, retry after 3.250 s; "
        "running 1"
    )
    assert "KV of default 50%" in line


def test_the_summary_stays_short_however_many_strangers_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A million random addresses make one line and a bounded memory."""
    clock = FakeClock()
    hook = LogHook(clock)
    for number in range(MOST_KINDS + 500):
        hook(AdmissionEvent(kind=EventKind.REFUSED, tenant=f"address-{number}", reason="queue_full"))
    with caplog.at_level(logging.INFO, "tidegate"):
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=STATISTICS))
    (line,) = caplog.messages
    assert f"Refused {MOST_KINDS + 500} (others 500, address-" in line
    assert len(line) < 600


def test_the_same_probe_failure_is_told_once_until_the_signal_is_fresh_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine that is down for an hour is one line, not 3,600."""
    hook = LogHook(FakeClock())
    failed = AdmissionEvent(kind=EventKind.PROBE_FAILED, instance="a", detail="connection refused")
    with caplog.at_level(logging.INFO, "tidegate"):
        for _ in range(5):
            hook(failed)
        hook(AdmissionEvent(kind=EventKind.SIGNAL, instance="a", reason="blind"))
        hook(AdmissionEvent(kind=EventKind.SIGNAL, instance="a", reason="fresh"))
        hook(failed)
    told = [message for message in caplog.messages if "connection refused" in message]
    assert len(told) == 2
    assert any("is now blind" in message for message in caplog.messages)


def test_a_disputed_capacity_is_one_line_each_way(caplog: pytest.LogCaptureFixture) -> None:
    """With all three figures and the way out; ticks in between say nothing."""
    disputed = replace(
        INSTANCE,
        capacity_disputed=True,
        stated_capacity_tokens=16_384.0,
        learnt_capacity_tokens=9_800.0,
        capacity_tokens=9_800.0,
    )
    hook = LogHook(FakeClock())
    with caplog.at_level(logging.INFO, "tidegate"):
        for row in (INSTANCE, disputed, disputed, INSTANCE, INSTANCE):
            statistics = replace(STATISTICS, instances=(row,))
            hook(AdmissionEvent(kind=EventKind.TICK, statistics=statistics))
    assert caplog.messages == [
        "Tidegate: Capacity of default: it states 16384 tokens, its level says 9800. The gate goes by 9800; "
        "set kv.capacity_tokens if you know better.",
        "Tidegate: Capacity of default: what it states and what is measured agree again.",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_disputed_capacity_is_a_gauge(registry: CollectorRegistry) -> None:
    """0 while there is no dispute, so that an alert can tell it from silence."""
    hook = PrometheusHook(registry)
    for disputed in (False, True):
        row = replace(INSTANCE, capacity_disputed=disputed, stated_capacity_tokens=16_384.0)
        hook(AdmissionEvent(kind=EventKind.TICK, statistics=replace(STATISTICS, instances=(row,))))
        assert value(registry, "tidegate_kv_capacity_disputed", engine="default") == disputed
    assert value(registry, "tidegate_kv_stated_capacity_tokens", engine="default") == 16_384


def test_opening_itself_is_a_critical_line(caplog: pytest.LogCaptureFixture) -> None:
    """Loud enough to wake somebody."""
    LogHook(FakeClock())(AdmissionEvent(kind=EventKind.PASS_THROUGH, reason="opened", detail="passes all"))
    assert caplog.records[-1].levelno == logging.CRITICAL


def test_a_raising_hook_is_dropped_and_the_others_hear_on() -> None:
    """One bad listener costs itself."""
    heard: list[AdmissionEvent] = []

    def bad(event: AdmissionEvent) -> None:
        raise RuntimeError("bad hook")

    hooks = Hooks([bad, heard.append])
    for _ in range(2):
        hooks(AdmissionEvent(kind=EventKind.LEFT))
    assert len(heard) == 2


WAITS = [0.0, 0.004, 0.005, 0.0051, 0.3, 59.9, 60.0, 1e6]


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
