"""Events as log lines: said once, summed up, and what becomes of a hook that raises."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tests.server.snapshots import INSTANCE, STATISTICS
from tidegate.telemetry.events import AdmissionEvent, EventKind, Hooks
from tidegate.telemetry.log import SUMMARY_INTERVAL_S, LogHook
from tidegate.telemetry.summary import MOST_KINDS
from tidegate.testing import FakeClock


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
