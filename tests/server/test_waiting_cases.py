"""What goes wrong with gates elsewhere (queues, quotas, headers), each once through the whole middleware."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.server.bed import App, Level, Raw, bed, until
from tests.serving import serving
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.classify import _KNOWN
from tidegate.asgi.tenant import TenantKeys
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.telemetry.events import EventKind

ONE_SEAT = {"max_sequences": 1}
PEOPLE = [
    {"name": "gold", "keys": ["gold"], "priority_class": "vip"},
    {"name": "bulk", "keys": ["bulk"], "priority_class": "batch"},
    {"name": "a", "keys": ["a"]},
    {"name": "b", "keys": ["b"]},
    {"name": "spent", "keys": ["spent"], "requests_per_s": 0.001, "request_burst": 1},
]


def as_(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


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
        flood = [b.send({"prompt": f"{n}", "max_tokens": 4}, headers=as_("a")) for n in range(100)]
        await until(lambda: b.runtime.statistics().queued >= 8)
        lone = b.send(headers=as_("b"))
        await until(lambda: any(row.name == "b" for row in b.runtime.statistics().tenants))
        b.app.go.set()
        assert (await lone).status_code == 200
        statuses = [(await task).status_code for task in flood]
        assert statuses.count(429) > 50


async def test_q10_a_full_room_gives_way_to_a_higher_class() -> None:
    """Q10: the newest of the lowest class leaves with a time to come back; the VIP is served."""
    async with bed(kv=ONE_SEAT, queue={"max_requests": 3}, tenants=PEOPLE) as b:
        b.app.go.clear()
        holder = b.send(headers=as_("a"))
        await until(lambda: b.app.running == 1)
        bulk = []
        for number in range(3):
            bulk.append(b.send({"prompt": str(number)}, headers=as_("bulk")))
            await until(lambda: b.runtime.statistics().queued == len(bulk))
        vip = b.send(headers=as_("gold"))
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
            {"prompt": "x", "priority": -5}, headers=as_("a", **{"x-tidegate-priority": wish})
        )
        assert response.status_code == 200
        assert {event.priority_class for event in b.events if event.tenant == "a"} == {"standard"}
        assert json.loads(b.app.bodies[0]).get("priority", 0) >= 0, "the engine's own field is cut too"
        twice = Raw(b.gate, b"{}", as_("a"))
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


async def test_l1_tokens_are_reserved_before_they_are_known() -> None:
    """L1: five at once through a limit for two: the estimate is charged up front."""
    tenants = [{"name": "t", "keys": ["t"], "tokens_per_s": 1, "token_burst": 250}]
    async with bed(tenants=tenants) as b:
        b.app.go.clear()
        body = {"prompt": [1] * 10, "max_tokens": 100}
        sent = [b.send(body, headers=as_("t")) for _ in range(5)]
        await until(lambda: sum(task.done() for task in sent) >= 3)
        assert b.app.running <= 2
        b.app.go.set()
        statuses = sorted([(await task).status_code for task in sent])
        assert statuses.count(429) >= 3


async def test_l5_the_prompt_is_charged_too() -> None:
    """L5: a long prompt with an answer of one token spends the quota."""
    tenants = [{"name": "t", "keys": ["t"], "tokens_per_s": 1, "token_burst": 1500}]
    app = App()
    app.chunks = [b'{"usage": {"prompt_tokens": 1000, "completion_tokens": 1}}']
    async with bed(app, Level(capacity_tokens=1_000_000), tenants=tenants) as b:
        body = {"prompt": [1] * 1000, "max_tokens": 1}
        assert (await b.post(body, headers=as_("t"))).status_code == 200
        refused = await b.post(body, headers=as_("t"))
        assert refused.json()["error"]["reason"] == "token_rate_limited"


async def test_l9_l13_many_keys_cost_little_and_appear_nowhere() -> None:
    """L9, L13: a thousand distinct keys; none is in an event, a label or a body."""
    async with bed(max_tenants=50, identity={"max_credentials": 50}) as b:
        for number in range(300):
            await b.post(headers=as_(f"sk-secret-{number}"))
        books = b.runtime.room.gate._books
        assert len(books.tenants) <= 51
        assert "sk-secret" not in repr(b.events)
        assert hashlib.sha256(b"sk-secret-1").hexdigest() not in repr(b.events)


async def test_r2_r3_answers_keep_their_own_headers_and_get_no_retry_after() -> None:
    """R2, R3: nothing of a refusal on an admitted answer; the app's own limit headers pass once."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"ratelimit", b'"own";r=5'), (b"x-ratelimit-limit", b"7")]
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async with bed(app) as b:
        response = await b.post()
        assert "retry-after" not in response.headers
        assert response.headers.get_list("ratelimit") == ['"own";r=5']
        assert response.headers.get_list("x-ratelimit-limit") == ["7"]


async def test_r6_r7_r8_a_page_reads_the_refusal_in_both_orders_of_middleware() -> None:
    """R6, R7, R8: CORS outside us or not at all; preflights cost nothing and are never refused."""
    page = {"origin": "https://chat.example"}
    preflight = {**page, "access-control-request-method": "POST"}

    async def handler(request: Any) -> JSONResponse:
        return JSONResponse({})

    gate: dict[str, Any] = {
        "settings": Settings.load(metrics=False, tenants=PEOPLE, cors={"allow_origins": [page["origin"]]}),
        "probe": Level(),
    }
    cors: dict[str, Any] = {"allow_origins": [page["origin"]], "allow_methods": ["POST"]}
    for outermost_is_ours in (True, False):
        app = Starlette(routes=[Route("/v1/completions", handler, methods=["POST"])])
        layers: list[tuple[Any, dict[str, Any]]] = [(CORSMiddleware, cors), (AdmissionMiddleware, gate)]
        for layer, options in layers if outermost_is_ours else reversed(layers):
            app.add_middleware(layer, **options)
        async with serving(app) as url, _client(url) as client:
            for _ in range(3):
                assert (await client.options("/v1/completions", headers=preflight)).status_code == 200
            await client.post("/v1/completions", json={}, headers=as_("spent", **page))
            refused = await client.post("/v1/completions", json={}, headers=as_("spent", **page))
            assert refused.status_code == 429
            assert set(refused.headers.get_list("access-control-allow-origin")) == {page["origin"]}
            exposed = refused.headers["access-control-expose-headers"].lower()
            assert "retry-after" in exposed
            assert refused.json()["error"]["retry_after"] >= 1
            again = await client.options("/v1/completions", headers=preflight)
            assert again.status_code == 200


def _client(url: str) -> Any:
    import httpx

    return httpx.AsyncClient(base_url=url, timeout=30)


@pytest.mark.parametrize("path", sorted(_KNOWN))
async def test_m9_every_known_inference_route_is_guarded(path: str) -> None:
    """M9: at a spent quota each is refused, the app is not called."""
    async with bed(tenants=PEOPLE) as b:
        await b.post(headers=as_("spent"))
        response = await b.post({"prompt": "x"}, path=path, headers=as_("spent"))
        assert response.status_code == 429
        assert b.app.started == 1


async def test_keys_from_a_provider_name_tenants_through_the_middleware() -> None:
    """Asked with the hash of the key, never with the key; its class is the tenant's."""
    asked: list[str] = []

    async def lookup(digest: str) -> TenantKeys | None:
        asked.append(digest)
        known = digest == hashlib.sha256(b"hourly").hexdigest()
        return TenantKeys(name="hourly", priority_class="vip") if known else None

    async with bed() as b:
        gate = AdmissionMiddleware(
            b.app, Settings.load(metrics=False), probe=Level(), keys=lookup, hooks=[b.events.append]
        )
        for key in ("hourly", "hourly", "stranger"):
            raw = Raw(gate, b"{}", as_(key))
            await raw.task
            assert raw.status == 200
        assert len(asked) == 2
        seen = [(e.tenant, e.priority_class) for e in b.events if e.kind is EventKind.ADMITTED]
        assert seen[:2] == [("hourly", "vip")] * 2
        assert gate._runtime is not None
        await gate._runtime.stop()


async def test_bodies_being_read_count_against_the_queues_bytes() -> None:
    """Slow uploads cannot take more memory than the queue may; what they held is given back."""
    async with bed(queue={"max_bytes": 10_000}, level=Level(capacity_tokens=1_000_000)) as b:
        slow = Upload(b.gate)
        slow.push(b"x" * 8_000)
        await until(lambda: b.runtime.door._admission._bodies.held_bytes == 8_000)
        other = Upload(b.gate)
        other.push(b"x" * 5_000)
        await other.task
        assert other.sent[0]["status"] == 429
        error = json.loads(other.sent[1]["body"])["error"]
        assert (error["reason"], error["scope"]) == ("queue_full", "model")
        assert dict(other.sent[0]["headers"])[b"retry-after"]
        slow.push(b"", more=False)
        await slow.task
        assert slow.sent[0]["status"] == 200
        assert b.runtime.door._admission._bodies.held_bytes == 0


class Upload(Raw):
    """A request whose body arrives as the test says."""

    def __init__(self, gate: Any) -> None:
        super().__init__(gate)
        self._incoming.get_nowait()

    def push(self, part: bytes, more: bool = True) -> None:
        message: Message = {"type": "http.request", "body": part, "more_body": more}
        self._incoming.put_nowait(message)


async def test_shadow_mode_answers_nothing_by_itself_and_changes_nothing() -> None:
    """No 401, no 400, no cut field, no 503 while draining: the app gets what came, the events tell."""
    async with bed(mode="shadow", identity={"require_key": True}) as b:
        body = b'{"prompt": "x", "priority": -9, "n": 100000}'
        assert (await b.post(body)).status_code == 200
        b.runtime.drain()
        assert (await b.post(body)).status_code == 200
        assert b.app.bodies == [body, body]
        shadowed = [event.reason for event in b.events if event.kind is EventKind.SHADOWED]
        assert shadowed == ["bad_request", "draining"]
    async with bed(mode="shadow") as b:
        assert (await b.post(b'{"prompt": "x", "priority": -9, "n": 100000}')).status_code == 200
        assert b.app.bodies == [b'{"prompt": "x", "priority": -9, "n": 100000}']


async def test_shadow_mode_lets_a_slow_body_take_its_time() -> None:
    """Neither time-out nor bytes held end it."""
    settings: dict[str, Any] = {"queue": {"max_bytes": 10}, "body": {"timeout_s": 0.05}}
    async with bed(mode="shadow", **settings) as b:
        slow = Upload(b.gate)
        slow.push(b"x" * 100)
        await asyncio.sleep(0.2)
        slow.push(b"y", more=False)
        await slow.task
        assert b.app.bodies == [b"x" * 100 + b"y"]


async def test_a_body_too_large_to_be_looked_at_is_413() -> None:
    """Else padding would be a way round the field policy; declared or not, and never in shadow mode."""
    for headers in ({}, {"content-length": "101"}):
        async with bed(body={"max_bytes": 100}) as b:
            raw = Raw(b.gate, b'{"priority": -9, "prompt": "' + b"x" * 100 + b'"}', headers)
            await raw.task
            assert raw.status == 413
            error = json.loads(raw.sent[1]["body"])["error"]
            assert "body.max_bytes" in error["message"]
            assert b.app.started == 0
    async with bed(body={"max_bytes": 100, "oversize": "pass"}) as b:
        raw = Raw(b.gate, b"x" * 200)
        await raw.task
        assert (raw.status, b.app.bodies) == (200, [b"x" * 200])
    async with bed(body={"max_bytes": 100}, mode="shadow") as b:
        raw = Raw(b.gate, b"x" * 200)
        await raw.task
        assert (raw.status, b.app.bodies) == (200, [b"x" * 200])


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


async def test_end_users_share_their_services_quota_and_cannot_be_another_tenant() -> None:
    """The header adds turns inside one key; it is no way round the key's quota."""
    tenants = [
        {"name": "app", "keys": ["app"], "requests_per_s": 0.001, "request_burst": 2},
        {"name": "app/x", "keys": ["other"]},
    ]
    async with bed(tenants=tenants, identity={"end_user_header": "X-User"}) as b:
        statuses = [
            (await b.post(headers=as_("app", **{"x-user": user}))).status_code
            for user in ("x", "y", "z", "x")
        ]
        assert statuses == [200, 200, 429, 429]
        assert (await b.post(headers=as_("other"))).status_code == 200


async def test_a_tenant_may_have_a_field_policy_of_its_own() -> None:
    """One may set the engine's priority, the others may not."""
    tenants = [
        {"name": "ops", "keys": ["ops"], "fields": {"priority": "allow"}},
        {"name": "a", "keys": ["a"]},
    ]
    async with bed(tenants=tenants) as b:
        for key in ("ops", "a"):
            await b.post({"prompt": "x", "priority": -5}, headers=as_(key, **{"x-vllm-priority": "1"}))
        assert ["priority" in json.loads(body) for body in b.app.bodies] == [True, False]


async def test_a_send_that_hangs_on_a_slow_reader_is_told_to_the_ledger_and_taken_back() -> None:
    """Seen although chunks go straight to the server's own send; the stream goes on when the reader does."""
    drained = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with bed(app) as b:
        raw = SlowReader(b.gate, drained)
        await until(lambda: raw.is_waiting)
        clock = b.runtime._parts.clock
        [(lease, *_)] = b.runtime.room.gate._books.running._places.values()

        def is_blocked() -> bool:
            return lease.blocked_since is not None

        b.runtime.door.look_for_blocked_sends(clock())
        assert not is_blocked(), "not yet"
        b.runtime.door.look_for_blocked_sends(clock() + 2)
        assert is_blocked()
        drained.set()
        await raw.task
        assert not is_blocked()
        assert b.runtime.statistics().running == 0


class SlowReader(Raw):
    """Its first chunk hangs until the test lets it go."""

    def __init__(self, gate: Any, drained: asyncio.Event) -> None:
        super().__init__(gate, b'{"prompt": "x", "stream": true}')
        self._drained = drained
        self.is_waiting = False

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.is_waiting = True
            await self._drained.wait()
        await super()._send(message)


async def test_the_probe_hurries_near_the_watermark_in_force() -> None:
    """The poller is told the real one, not a constant."""
    async with bed(kv={"high_watermark": 0.5}) as b:
        b.runtime.ticker.tick()
        assert b.runtime._poller._watermark() == 0.5


async def test_a_required_key_may_come_from_the_provider() -> None:
    """Known there: in; unknown everywhere: 401."""

    async def lookup(digest: str) -> TenantKeys | None:
        known = digest == hashlib.sha256(b"hourly").hexdigest()
        return TenantKeys(name="hourly", priority_class="standard") if known else None

    settings = Settings.load(metrics=False, identity={"require_key": True})
    gate = AdmissionMiddleware(App(), settings, probe=Level(), keys=lookup)
    statuses = []
    for key in ("hourly", "stranger"):
        raw = Raw(gate, b"{}", as_(key))
        await raw.task
        statuses.append(raw.status)
    assert statuses == [200, 401]
    assert gate._runtime is not None
    await gate._runtime.stop()
