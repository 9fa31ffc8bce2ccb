"""Retries seen: order kept, early returns refused, and an attempt nobody waits for gives way to the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.server.bed import App, Bed, Raw, bed, until
from tidegate.asgi.types import Receive, Scope, Send
from tidegate.telemetry.events import EventKind

BODY = json.dumps({"prompt": "hello", "max_tokens": 16}).encode()
OTHER = json.dumps({"prompt": "other", "max_tokens": 16}).encode()
TENANTS = [{"name": "a", "keys": ["a"]}, {"name": "b", "keys": ["b"]}]


def told_ms(raw: Raw) -> int:
    return int(dict(raw.sent[0]["headers"])[b"retry-after-ms"])


def keyed(gate: Any, tenant: str = "a", body: bytes = BODY, key: str = '"k1"', **headers: str) -> Raw:
    return Raw(gate, body, {"authorization": f"Bearer {tenant}", "idempotency-key": key, **headers})


class Stubborn(App):
    """Answers although it has been told to stop, as a framework does whose handler was cancelled."""

    async def _answer(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.saw_disconnect += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"null"})


async def test_who_timed_out_and_retries_takes_over_from_its_own_ghost() -> None:
    """The caller left, the app has not noticed: it is told, and only the retry's work goes on."""

    class Deaf(App):
        """Works on until released, whoever leaves; notices only when told while it asks."""

        async def _answer(self, receive: Receive, send: Send) -> None:
            await receive()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.saw_disconnect += 1
            await self.go.wait()

    app = Deaf()
    app.go.clear()
    async with bed(app, tenants=TENANTS) as b:
        first = keyed(b.gate)
        await until(lambda: app.running == 1)
        first.leave()
        await until(lambda: app.saw_disconnect == 1)
        second = keyed(b.gate)
        await until(lambda: app.started == 2)
        app.go.set()
        await first.task
        assert first.sent == []
        second.leave()
        await second.task
        assert b.runtime.statistics().running == 0


async def test_past_its_deadline_the_earlier_app_is_told_and_its_caller_gets_409() -> None:
    """Still connected but past what it said it would wait: superseded, not retried, no Retry-After."""
    async with bed(tenants=TENANTS) as b:
        b.app.go.clear()
        first = keyed(b.gate, prefer="wait=0")
        await until(lambda: b.app.running == 1)
        second = keyed(b.gate)
        await first.task
        assert b.app.saw_disconnect == 1
        assert first.status == 409
        headers = dict(first.sent[0]["headers"])
        assert headers[b"x-should-retry"] == b"false"
        assert b"retry-after" not in headers
        assert json.loads(first.sent[1]["body"])["error"]["reason"] == "superseded"
        assert [e.reason for e in b.events if e.kind is EventKind.REFUSED] == ["superseded"]
        b.app.go.set()
        await second.task
        assert second.status == 200
        assert b.runtime.statistics().running == 0


async def test_an_app_that_answers_all_the_same_is_not_heard() -> None:
    """A cancelled handler's empty 200 never reaches the superseded caller."""
    async with bed(Stubborn(), tenants=TENANTS) as b:
        first = keyed(b.gate, prefer="wait=0")
        await until(lambda: b.app.running == 1)
        second = keyed(b.gate)
        await first.task
        assert first.status == 409
        assert [m["type"] for m in first.sent] == ["http.response.start", "http.response.body"]
        second.leave()
        await second.task


async def test_an_app_that_raises_when_told_is_no_500() -> None:
    """The caller gets the 409, the slot is free."""

    class Raising(App):
        async def _answer(self, receive: Receive, send: Send) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            raise RuntimeError("client disconnected")

    async with bed(Raising(), tenants=TENANTS) as b:
        first = keyed(b.gate, prefer="wait=0")
        await until(lambda: b.app.running == 1)
        second = keyed(b.gate, prefer="wait=0")
        await first.task
        assert first.status == 409
        second.leave()
        await asyncio.gather(second.task, return_exceptions=True)
        assert b.runtime.statistics().running == 0


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "b"},
        {"body": OTHER},
        {"key": '"k2"'},
    ],
    ids=["another tenant", "another body", "another key"],
)
async def test_nobody_can_cancel_anothers_work(other: dict[str, Any]) -> None:
    """Tenant, key and body must all be equal."""
    async with bed(tenants=TENANTS) as b:
        b.app.go.clear()
        first = keyed(b.gate, prefer="wait=0")
        await until(lambda: b.app.running == 1)
        second = keyed(b.gate, **other)
        await until(lambda: b.app.running == 2)
        b.app.go.set()
        await asyncio.gather(first.task, second.task)
        assert (first.status, second.status) == (200, 200)
        assert b.app.saw_disconnect == 0


async def test_a_caller_that_still_waits_keeps_its_work() -> None:
    """An equal request does not cancel one whose caller is there and in time."""
    async with bed(tenants=TENANTS) as b:
        b.app.go.clear()
        first = keyed(b.gate)
        await until(lambda: b.app.running == 1)
        second = keyed(b.gate)
        await until(lambda: b.app.running == 2)
        b.app.go.set()
        await asyncio.gather(first.task, second.task)
        assert first.status == second.status == 200


async def test_a_stream_under_way_is_cut_and_gets_no_second_answer() -> None:
    """Its status is spent; the app is told, nothing of ours is added."""
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    async with bed(app, tenants=TENANTS) as b:
        first = keyed(b.gate, prefer="wait=0")
        await begun.wait()
        second = keyed(b.gate)
        await first.task
        assert [m["type"] for m in first.sent] == ["http.response.start", "http.response.body"]
        second.leave()
        await second.task


@asynccontextmanager
async def busy(app: App, **settings: Any) -> AsyncIterator[Bed]:
    """One seat, taken, and known to become free every three seconds: so a slot is three seconds away."""
    async with bed(app, kv={"max_sequences": 1}, tenants=TENANTS, **settings) as b:
        app.go.clear()
        b.runtime.room.gate._books.refusals._rate.completed(3.0)
        holder = Raw(b.gate, b'{"prompt": "holder"}', {"authorization": "Bearer b"})
        await until(lambda: app.running == 1)
        yield b
        app.go.set()
        await holder.task


@pytest.mark.parametrize("header", ["x-stainless-retry-count", "tidegate-attempt"])
async def test_a_declared_retry_keeps_its_place(header: str) -> None:
    """Refused, told a time, back at that time: it goes before one that came in between."""
    async with busy(App(), classes=[{"name": "standard", "max_wait_s": 10}]) as b:
        refused = Raw(b.gate, BODY, {"authorization": "Bearer a", "prefer": "wait=0"})
        await refused.task
        assert refused.status == 429
        await asyncio.sleep(told_ms(refused) / 1000)
        newer = Raw(b.gate, OTHER, {"authorization": "Bearer a"})
        await until(lambda: b.runtime.statistics().queued == 1)
        again = Raw(b.gate, BODY, {"authorization": "Bearer a", header: "2"})
        await until(lambda: b.runtime.statistics().queued == 2)
        b.app.go.set()
        await asyncio.gather(newer.task, again.task)
        assert b.app.bodies[1:] == [BODY, OTHER]


@pytest.mark.parametrize(
    "naming",
    [{"idempotency-key": '"mine"'}, {"x-stainless-retry-count": "1"}],
    ids=["by its key", "by its digest on a declared retry"],
)
async def test_an_early_return_is_refused_cheaply_and_keeps_the_time_it_was_given(
    naming: dict[str, str],
) -> None:
    """`too_early` with what is left of the wait, and no new one."""
    async with busy(App()) as b:
        headers = {"authorization": "Bearer a", **naming}
        first = Raw(b.gate, BODY, {**headers, "prefer": "wait=0"})
        await first.task
        assert told_ms(first) > 2000
        early = Raw(b.gate, BODY, headers)
        await early.task
        error = json.loads(early.sent[1]["body"])["error"]
        assert error["reason"] == "too_early"
        assert error["retry_after_ms"] <= told_ms(first)
        assert b.app.started == 1
