"""Whatever Tidegate refuses is told: to the operator in an event, to proxies in a header."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.server.bed import Bed, Level, Raw, bed, explode, until
from tidegate.telemetry.events import EventKind


def told(b: Bed) -> list[str]:
    return [event.reason for event in b.events if event.kind is EventKind.REFUSED]


@pytest.mark.parametrize(
    ("settings", "body", "status", "reason"),
    [
        ({"identity": {"require_key": True}}, {}, 401, "invalid_api_key"),
        ({"fields": {"max_parallel": 1}}, {"prompt": "x", "n": 5}, 400, "invalid_request"),
        ({"body": {"max_bytes": 8}}, {"prompt": "far too long"}, 413, "invalid_request"),
    ],
)
async def test_answers_that_are_no_decision_are_told_as_well(
    settings: dict[str, Any], body: dict[str, Any], status: int, reason: str
) -> None:
    """A flood of guessed keys or a broken fleet is seen in the metrics, the log and the hooks."""
    async with bed(**settings) as b:
        answer = await b.post(body)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (status, reason)
        assert answer.headers["tidegate-reason"] == reason
        assert told(b) == [reason]


async def test_a_late_body_is_told() -> None:
    """One that never ends is answered 408 and counted."""
    async with bed(body={"timeout_s": 0.05}) as b:
        raw = Raw(b.gate, b'{"prompt"')
        raw._incoming.get_nowait()
        raw._incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        await asyncio.wait_for(raw.task, 60)
        assert (raw.status, told(b)) == (408, ["body_timeout"])


async def test_the_reason_stands_in_a_header_too() -> None:
    """Access logs and proxies do not read bodies."""
    async with bed(tenants=[{"name": "t", "keys": ["t"], "requests_per_s": 0.1, "request_burst": 1}]) as b:
        await b.post(headers={"authorization": "Bearer t"})
        refused = await b.post(headers={"authorization": "Bearer t"})
        assert refused.headers["tidegate-reason"] == refused.json()["error"]["reason"] == "rate_limited"


async def test_a_draining_server_sends_each_caller_away_for_a_time_of_its_own() -> None:
    """The whole queue and all who come would else be back in the instant when the new process comes up."""
    async with bed(level=Level(kv_usage=0.97)) as b:
        drawn = itertools.cycle(number / 8 for number in range(8))
        b.uniform = lambda: next(drawn)
        waiting = [b.send() for _ in range(4)]
        await until(lambda: b.runtime.statistics().queued == 4)
        b.runtime.drain()
        answers = [*await asyncio.gather(*waiting), *[await b.post() for _ in range(4)]]
        waits_ms = sorted(int(answer.headers["retry-after-ms"]) for answer in answers)
        assert {answer.status_code for answer in answers} == {503}
        assert waits_ms == [5_000 + 1_250 * number for number in range(8)]


async def test_a_closed_gate_that_fails_sends_each_caller_away_for_a_time_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them meet the fault in the same second."""

    async with bed(on_internal_error="closed") as b:
        drawn = itertools.cycle(number / 8 for number in range(8))
        b.uniform = lambda: next(drawn)
        monkeypatch.setattr(b.runtime.room.gate, "offer", explode)
        answers = [await b.post() for _ in range(8)]
        waits_ms = {answer.headers["retry-after-ms"] for answer in answers}
        assert len(waits_ms) == 8
