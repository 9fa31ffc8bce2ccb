"""The wire table from the server: its writer, its real answers, and the client's reader on both."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.server.bed import Bed, Level, bearer, bed, until
from tests.wire_cases import WRITTEN_BY_TIDEGATE, WireCase
from tidegate import Reading
from tidegate.asgi.headers import refusal_headers
from tidegate.asgi.replies import ReplyOptions, build_reply, refusal_status
from tidegate.core.decisions import Reason, Refuse
from tidegate_client.fields import advice_from, refusal_from

WALL_S = 1_795_954_896.0
BY_REASON = {case.written_from["reason"]: case for case in WRITTEN_BY_TIDEGATE if case.written_from}


def refusal(made: dict[str, Any]) -> Refuse:
    """The decision from which a row was written."""
    return Refuse(
        ticket=1,
        reason=Reason(made["reason"]),
        scope=made["scope"],
        retry_after_s=made["wait_s"],
        limit=made["limit"],
        remaining=made["remaining"],
        reset_after_s=made["reset_after_s"],
    )


@pytest.mark.parametrize("case", WRITTEN_BY_TIDEGATE, ids=lambda case: case.name)
def test_writes_what_the_table_says(case: WireCase) -> None:
    """Every row that names a refusal is line by line what we write for it, and nothing else."""
    made = case.written_from or {}
    lines = refusal_headers(refusal(made), wall_now_s=made["wall_now"], send_policy=made["send_policy"])
    ours = {name.decode(): value.decode() for name, value in lines}
    assert ours == {name.lower(): value for name, value in case.headers}
    assert refusal_status(Reason(made["reason"]), 429) == case.status


@pytest.mark.parametrize("reason", Reason)
def test_the_client_reads_what_we_write(reason: Reason) -> None:
    """Wait, will to retry, reason and scope arrive unchanged; the two halves meet on the wire only."""
    refuse = Refuse(ticket=1, reason=reason, scope="class", retry_after_s=2.3705, limit=64)
    request = {"type": "http", "method": "POST", "headers": []}
    reply = build_reply(refuse, request, None, ReplyOptions(send_policy=True), WALL_S)
    lines = [(name.decode(), value.decode()) for name, value in reply.headers]
    advice, read = advice_from(lines, WALL_S), refusal_from(reply.body)
    assert (read.reason, read.scope) == (reason.value, "class")
    if reason in (Reason.SUPERSEDED, Reason.PROMPT_TOO_LARGE, Reason.COST_ABOVE_BURST):
        assert (advice.wait_s, advice.should_retry) == (None, False)
    else:
        assert (advice.wait_s, advice.should_retry) == (2.371, True)


async def _second(b: Bed) -> httpx.Response:
    await b.post(headers=bearer("t"))
    return await b.post(headers=bearer("t"))


async def _beyond_the_seats(b: Bed) -> httpx.Response:
    b.app.go.clear()
    sent = []
    for number in range(4):
        sent.append(b.send({"prompt": str(number)}, headers=bearer("t")))
        await until(lambda: b.app.running + b.runtime.statistics().queued == len(sent) or sent[-1].done())
    last = await sent[3]
    b.app.go.set()
    await asyncio.gather(*sent[:3])
    return last


async def _impatient(b: Bed) -> httpx.Response:
    b.level.kv_usage = 0.97
    await until(lambda: (b.runtime.statistics().instances[0].level or 0) > 0.9)
    return await b.post(headers={"prefer": "wait=1"})


async def _huge(b: Bed) -> httpx.Response:
    return await b.post({"prompt": [1] * 3_000, "max_tokens": 1}, headers=bearer("t"))


async def _draining(b: Bed) -> httpx.Response:
    b.runtime.drain()
    return await b.post()


class Asleep(Level):
    """An engine that sleeps."""

    async def read(self) -> Reading:
        return Reading(kv_usage=0.0, waiting=0, running=0, asleep=True)


def tenant(**limits: Any) -> dict[str, Any]:
    return {"tenants": [{"name": "t", "keys": ["t"], **limits}]}


ONE = {"kv": {"max_sequences": 1}}
REAL: dict[str, tuple[dict[str, Any], Callable[[Bed], Awaitable[httpx.Response]]]] = {
    "rate_limited": (tenant(requests_per_s=0.1, request_burst=1), _second),
    "token_rate_limited": (tenant(tokens_per_s=0.1, token_burst=16), _second),
    "tenant_queue_full": ({**ONE, **tenant(max_queued=2)}, _beyond_the_seats),
    "queue_full": ({**ONE, **tenant(), "queue": {"max_requests": 2}}, _beyond_the_seats),
    "wait_expired": ({"probe": {"interval_s": 0.1}}, _impatient),
    "prompt_too_large": ({"level": Level(capacity_tokens=1_000)}, _huge),
    "cost_above_burst": (tenant(tokens_per_s=1, token_burst=2_000), _huge),
    "draining": ({}, _draining),
    "asleep": ({"level": Asleep()}, lambda b: b.post()),
}


@pytest.mark.parametrize("reason", REAL)
async def test_real_answers_are_rows_of_the_table(reason: str) -> None:
    """The gate driven into each refusal: the row's headers and names; the client reads the same wait."""
    settings, drive = REAL[reason]
    row = BY_REASON[reason]
    made = row.written_from or {}
    async with bed(reply={"send_policy": made["send_policy"]}, **settings) as b:
        response = await drive(b)
    error = response.json()["error"]
    assert (error["reason"], response.status_code) == (reason, row.status)
    for name, value in row.headers:
        assert _shape(response.headers[name]) == _shape(value), name
    unsaid = {"retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-limit", "retry-after-ms"}
    unsaid -= {name.lower() for name, _ in row.headers}
    assert unsaid.isdisjoint(response.headers)
    advice, read = advice_from(response.headers.multi_items(), WALL_S), refusal_from(response.content)
    assert (read.reason, advice.should_retry) == (reason, row.should_retry)
    told_ms = error.get("retry_after_ms")
    assert advice.wait_s == (None if told_ms is None else pytest.approx(told_ms / 1000))


def _shape(value: str) -> str:
    """A header's value without its figures."""
    return re.sub(r"\d+", "0", value)


def test_every_reason_with_a_wait_or_without_is_in_the_table() -> None:
    """The policies' names are those that are sent: requests, tokens, queue, tenant-queue, capacity."""
    names = {
        value.split(";")[0].strip('"')
        for case in WRITTEN_BY_TIDEGATE
        for name, value in case.headers
        if name == "RateLimit"
    }
    assert names == {"requests", "tokens", "queue", "tenant-queue", "capacity"}
    assert all(case.should_retry is not None for case in WRITTEN_BY_TIDEGATE)
