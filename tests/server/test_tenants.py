"""Tenants through the whole middleware: a service with users behind it, and those nobody knows."""

from __future__ import annotations

import json

from tests.server.bed import bearer, bed, until
from tidegate.telemetry.events import EventKind


async def test_a_services_concurrency_is_one_bound_for_all_its_users() -> None:
    """Two users behind one key with room for one request: the second waits, another tenant does not."""
    tenants = [{"name": "app", "keys": ["app"], "max_concurrency": 1}, {"name": "b", "keys": ["b"]}]
    async with bed(tenants=tenants, identity={"end_user_header": "X-User"}) as b:
        b.app.go.clear()
        first = b.send({"prompt": "1"}, headers=bearer("app", **{"x-user": "ann"}))
        await until(lambda: b.app.running == 1)
        second = b.send({"prompt": "2"}, headers=bearer("app", **{"x-user": "bob"}))
        await until(lambda: b.runtime.statistics().queued == 1)
        other = b.send({"prompt": "3"}, headers=bearer("b"))
        await until(lambda: b.app.running == 2)
        assert b.runtime.statistics().queued == 1
        b.app.go.set()
        assert [(await task).status_code for task in (first, second, other)] == [200] * 3
        named = {row for event in b.events if event.kind is EventKind.ADMITTED for row in (event.tenant,)}
        assert named == {"app", "b"}, "users are no tenants, and no label grows by them"


async def test_one_users_flood_does_not_keep_another_out() -> None:
    """The service's seats are full of one user's requests; another's first one takes the newest's seat."""
    tenants = [{"name": "app", "keys": ["app"], "max_queued": 3}]
    loud = bearer("app", **{"x-user": "loud"})
    async with bed(tenants=tenants, kv={"max_sequences": 1}, identity={"end_user_header": "X-User"}) as b:
        b.app.go.clear()
        holder = b.send({"prompt": "0", "max_tokens": 2}, headers=loud)
        await until(lambda: b.app.running == 1)
        flood = []
        for number in range(3):
            flood.append(b.send({"prompt": str(number), "max_tokens": 2}, headers=loud))
            await until(lambda: b.runtime.statistics().queued == len(flood))
        soft = b.send({"prompt": "x", "max_tokens": 2}, headers=bearer("app", **{"x-user": "soft"}))
        refused = await flood[2]
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["reason"], error["scope"]) == ("tenant_queue_full", "tenant")
        b.app.go.set()
        assert [(await task).status_code for task in (holder, soft, *flood[:2])] == [200] * 4
        order = [body for body in b.app.bodies if b'"x"' in body or b'"1"' in body]
        assert b'"x"' in order[0], "and is served before the flood's second"


async def test_a_tenant_named_unproven_bounds_all_who_have_not_proved_themselves() -> None:
    """Random keys at a server that checks keys share the quota that the operator gave them."""
    tenants = [{"name": "unproven", "requests_per_s": 0.001, "request_burst": 2}]
    async with bed(tenants=tenants) as b:
        b.app.status = 401
        assert (await b.post(headers=bearer("sk-0"))).status_code == 401
        statuses = [(await b.post(headers=bearer(f"sk-{number}"))).status_code for number in range(1, 5)]
        assert statuses == [401, 401, 429, 429]


async def test_end_users_share_their_services_quota_and_cannot_be_another_tenant() -> None:
    """The header adds turns inside one key; it is no way round the key's quota."""
    tenants = [
        {"name": "app", "keys": ["app"], "requests_per_s": 0.001, "request_burst": 2},
        {"name": "app/x", "keys": ["other"]},
    ]
    async with bed(tenants=tenants, identity={"end_user_header": "X-User"}) as b:
        statuses = [
            (await b.post(headers=bearer("app", **{"x-user": user}))).status_code
            for user in ("x", "y", "z", "x")
        ]
        assert statuses == [200, 200, 429, 429]
        assert (await b.post(headers=bearer("other"))).status_code == 200


async def test_a_tenant_may_have_a_field_policy_of_its_own() -> None:
    """One may set the engine's priority, the others may not."""
    tenants = [
        {"name": "ops", "keys": ["ops"], "fields": {"priority": "allow"}},
        {"name": "a", "keys": ["a"]},
    ]
    async with bed(tenants=tenants) as b:
        for key in ("ops", "a"):
            await b.post({"prompt": "x", "priority": -5}, headers=bearer(key, **{"x-vllm-priority": "1"}))
        assert ["priority" in json.loads(body) for body in b.app.bodies] == [True, False]
