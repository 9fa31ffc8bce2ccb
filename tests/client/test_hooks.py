"""How waits are told: log, Prometheus, OpenTelemetry, the console, the feed."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import time
from typing import Any

import prometheus_client
import pytest
from opentelemetry import trace
from rich.console import Console

from tidegate_client import WaitEvent, WaitFeed
from tidegate_client.hooks import several
from tidegate_client.hooks.console import Countdown
from tidegate_client.hooks.log import log_waits
from tidegate_client.hooks.opentelemetry import trace_waits
from tidegate_client.hooks.prometheus import count_waits


def event(call_id: int = 1, wait_s: float = 3.0, now: float = 100.0) -> WaitEvent:
    """A wait that begins at `now`."""
    return WaitEvent(
        "queue_full",
        wait_s,
        now + wait_s,
        1.8e9 + wait_s,
        2,
        10,
        "http://engine",
        "tenant",
        "retry-after",
        call_id,
    )


def test_one_line_of_log_per_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the origin, the seconds, the attempt and the reason."""
    with caplog.at_level(logging.INFO):
        log_waits()(event())
        log_waits(logging.getLogger("mine"), logging.WARNING)(event())

    line = "http://engine: waiting 3.0 s before attempt 2 of 10 (queue_full, retry-after)"
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("tidegate_client", "INFO", line),
        ("mine", "WARNING", line),
    ]


def test_waits_are_counted_for_prometheus() -> None:
    """A counter and a histogram, labelled by origin and scope only."""
    registry = prometheus_client.CollectorRegistry()
    count = count_waits(registry)
    count(event())
    count(event(wait_s=40))

    labels = {"origin": "http://engine", "scope": "tenant"}
    assert registry.get_sample_value("tidegate_client_waits_total", labels) == 2
    assert registry.get_sample_value("tidegate_client_wait_seconds_sum", labels) == 43
    assert registry.get_sample_value("tidegate_client_wait_seconds_bucket", labels | {"le": "10.0"}) == 1


def test_waits_are_events_on_the_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current span gets the wait with its attributes; without an SDK nothing happens."""
    told: list[Any] = []

    class Span(trace.NonRecordingSpan):
        def add_event(self, *args: Any, **kwargs: Any) -> None:
            told.append(args)

    record = trace_waits()
    record(event())
    with trace.use_span(Span(trace.INVALID_SPAN_CONTEXT)):
        record(event())

    ((name, attributes),) = told
    assert name == "tidegate.wait"
    assert attributes["tidegate.wait_s"] == 3.0
    assert attributes["http.request.resend_count"] == 1


def test_the_countdown_counts_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waiting call has a line with the seconds left; one that is over is gone; many are summed up."""
    out = Console(file=io.StringIO(), width=120)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Countdown(out) as countdown:
        countdown(event(1, 30, now))
        countdown(event(1, 60, now))
        countdown(event(2, -1, now))
        out.print(countdown.render())
        for call in range(3, 13):
            countdown(event(call, 30, now))
        out.print(countdown.render())

    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "again in 60 s" in text
    assert "attempt 2 of 10" in text
    assert "and 3 more" in text


def test_several_listeners_hear_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A failing listener does not silence the ones after it."""
    heard: list[WaitEvent] = []

    def broken(_: WaitEvent) -> None:
        raise RuntimeError

    several(broken, heard.append)(event())

    assert heard == [event()]
    assert "listener failed" in caplog.text


async def test_the_feed_can_be_followed() -> None:
    """Every follower gets the events from its start on, from whatever thread they come."""
    feed = WaitFeed()
    feed(event(0))

    async def follow(count: int) -> list[int]:
        seen = []
        async for each in feed:
            seen.append(each.call_id)
            if len(seen) == count:
                break
        return seen

    tasks = [asyncio.create_task(follow(3)) for _ in range(2)]
    await asyncio.sleep(0)
    feed(event(1))
    for call in (2, 3):
        thread = threading.Thread(target=feed, args=(event(call),))
        thread.start()
        thread.join()

    assert [await task for task in tasks] == [[1, 2, 3]] * 2


def test_the_feed_shows_who_waits() -> None:
    """A snapshot has the latest event of each call that still waits, the next to go first."""
    feed = WaitFeed()
    for each in (event(1, 5), event(2, 9), event(1, 20), event(3, 1)):
        feed(each)

    assert [(each.call_id, each.wait_s) for each in feed.waiting(102.0)] == [(2, 9), (1, 20)]
    for call in range(3000):
        feed(event(call))
    assert len(feed.waiting(100.0)) == 1000
