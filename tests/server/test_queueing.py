"""What goes wrong with queues elsewhere, each once through the whole middleware."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.server.bed import Raw, bearer, bed, until
from tidegate.telemetry.events import EventKind

ONE_SEAT = {"max_sequences": 1}


PEOPLE = [
    {"name": "gold", "keys": ["gold"], "priority_class": "vip"},
    {"name": "bulk", "keys": ["bulk"], "priority_class": "batch"},
    {"name": "a", "keys": ["a"]},
    {"name": "b", "keys": ["b"]},
]


async def test_q1_depth_is_bounded_and_the_rest_is_refused_at_once() -> None:
    """Q1: three times what fits: the room never holds more than it may, and nobody else hangs."""
    everyone = {"max_queued": 100}
    async with bed(kv=ONE_SEAT, queue={"max_requests": 20}, default_tenant=everyone) as b:
        b.app.go.clear()
        sent = [b.send({"prompt": f"{number}", "max_tokens": 4}) for number in range(60)]
        await until(lambda: sum(task.done() for task in sent) == 39)
        assert b.runtime.statistics().queued == 20
        refused = [task.result() for task in sent if task.done()]
        assert {response.status_code for response in refused} == {429}
        assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
        b.app.go.set()
        assert [(await task).status_code for task in sent].count(200) == 21


async def test_q9_one_tenant_cannot_fill_the_room() -> None:
    """Q9: A floods, B is seated and served."""
    async with bed(kv=ONE_SEAT, queue={"max_requests": 32}, tenants=PEOPLE) as b:
        b.app.go.clear()
        flood = [b.send({"prompt": f"{n}", "max_tokens": 4}, headers=bearer("a")) for n in range(100)]
        await until(lambda: b.runtime.statistics().queued >= 8)
        lone = b.send(headers=bearer("b"))
        await until(lambda: any(row.name == "b" for row in b.runtime.statistics().tenants))
        b.app.go.set()
        assert (await lone).status_code == 200
        statuses = [(await task).status_code for task in flood]
        assert statuses.count(429) > 50


async def test_q10_a_full_room_gives_way_to_a_higher_class() -> None:
    """Q10: the newest of the lowest class leaves with a time to come back; the VIP is served."""
    async with bed(kv=ONE_SEAT, queue={"max_requests": 3}, tenants=PEOPLE) as b:
        b.app.go.clear()
        holder = b.send(headers=bearer("a"))
        await until(lambda: b.app.running == 1)
        bulk = []
        for number in range(3):
            bulk.append(b.send({"prompt": str(number)}, headers=bearer("bulk")))
            await until(lambda: b.runtime.statistics().queued == len(bulk))
        vip = b.send(headers=bearer("gold"))
        displaced = await bulk[2]
        assert displaced.status_code == 429
        assert displaced.json()["error"]["reason"] == "displaced"
        assert int(displaced.headers["retry-after"]) >= 1
        b.app.go.set()
        assert [(await task).status_code for task in (holder, vip, *bulk[:2])] == [200] * 4


@pytest.mark.parametrize("wish", ["system", "vip", "", "abc", "1e9", "-1", "VIP"])
async def test_q11_q12_nobody_raises_itself_and_no_wish_breaks_anything(wish: str) -> None:
    """Q11, Q12: the class comes from the configuration; a wish may only lower."""
    async with bed(tenants=PEOPLE) as b:
        response = await b.post(
            {"prompt": "x", "priority": -5}, headers=bearer("a", **{"x-tidegate-priority": wish})
        )
        assert response.status_code == 200
        assert {event.priority_class for event in b.events if event.tenant == "a"} == {"standard"}
        assert json.loads(b.app.bodies[0]).get("priority", 0) >= 0, "the engine's own field is cut too"
        twice = Raw(b.gate, b"{}", bearer("a"))
        twice.scope["headers"] += [(b"x-tidegate-priority", b"batch"), (b"x-tidegate-priority", b"system")]
        await twice.task
        assert twice.status == 200


async def test_q15_the_apps_own_503_passes_frees_the_slot_and_is_a_signal() -> None:
    """Q15: unaltered, counted apart from ours."""
    async with bed() as b:
        for status in (429, 503):
            b.app.status = status
            assert (await b.post()).status_code == status
        busy = [event.status for event in b.events if event.kind is EventKind.UPSTREAM_BUSY]
        assert busy == [429, 503]
        assert b.count(EventKind.REFUSED) == 0
        assert b.runtime.statistics().running == 0


async def test_queued_events_carry_the_place_and_the_wait() -> None:
    """For whoever shows it."""
    async with bed(kv=ONE_SEAT) as b:
        await b.post()  # one answer is timed
        b.app.go.clear()
        sent = [b.send({"prompt": str(number)}) for number in range(3)]
        await until(lambda: b.runtime.statistics().queued == 2)
        queued = [event for event in b.events if event.kind is EventKind.QUEUED]
        assert [event.position for event in queued] == [1, 2]
        assert all(event.estimated_wait_s is not None for event in queued)
        b.app.go.set()
        await asyncio.gather(*sent)


async def test_who_leaves_the_queue_before_its_body_was_read_gives_up_its_place() -> None:
    """A body too large to be held is looked through for the leaving behind it, and passed on whole."""
    body = {"max_bytes": 100, "oversize": "pass"}
    async with bed(body=body, default_tenant={"max_concurrency": 1}) as b:
        b.app.go.clear()
        first = Raw(b.gate)
        await until(lambda: b.app.running == 1)
        large = [Raw(b.gate, b"x" * 200_000, {"content-length": "200000"}) for _ in range(2)]
        await until(lambda: b.runtime.statistics().queued == 2)
        large[0].leave()
        await large[0].task
        assert b.runtime.statistics().queued == 1
        b.app.go.set()
        await asyncio.gather(first.task, large[1].task)
        assert b.app.bodies == [b"{}", b"x" * 200_000]
