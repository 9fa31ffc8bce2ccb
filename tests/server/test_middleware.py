"""The middleware as a whole: what passes, what waits, what is refused, and that every lease ends once."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.server.bed import App, Level, Raw, bed, until
from tidegate.telemetry.events import EventKind

FULL = Level(kv_usage=0.97)


async def test_below_the_watermark_a_request_passes_at_once() -> None:
    """The app gets the very bytes, the caller the very answer."""
    async with bed() as b:
        body = b'{"prompt":  "hello",\n "max_tokens": 5}'
        response = await b.post(body)
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 2
        assert b.app.bodies == [body]
        assert b.kinds().count(EventKind.ADMITTED) == 1
        assert response.headers["server-timing"].startswith("tidegate;dur=")
        assert b.runtime.statistics().running == 0


async def test_above_the_watermark_it_waits_and_passes_when_the_level_falls() -> None:
    """Waiting instead of refusing."""
    async with bed(level=Level(kv_usage=0.97)) as b:
        sent = b.send()
        await until(lambda: b.runtime.statistics().queued == 1)
        assert b.app.started == 0
        b.level.kv_usage = 0.1
        assert (await sent).status_code == 200
        assert b.count(EventKind.QUEUED) == 1


async def test_who_has_waited_too_long_gets_an_honest_429() -> None:
    """Every header and field of the refusal that clients read."""
    classes = [{"name": "standard", "max_wait_s": 0.2}]
    async with bed(level=Level(kv_usage=0.97), classes=classes) as b:
        response = await b.post()
        assert response.status_code == 429
        error = response.json()["error"]
        assert error["code"] == "RATE_LIMIT_EXCEEDED"
        assert error["type"] == "server_busy"
        assert error["reason"] in ("wait_expired", "wait_too_long")
        seconds = int(response.headers["retry-after"])
        assert seconds >= 1
        assert error["retry_after"] == seconds
        assert 0 < int(response.headers["retry-after-ms"]) <= seconds * 1000
        assert response.headers["cache-control"] == "no-store"
        assert ";r=0;t=" in response.headers["ratelimit"]
        assert b.app.started == 0


async def test_a_full_queue_refuses_with_the_seats_as_the_limit() -> None:
    """Limit and Remaining describe the bound that bit."""
    async with bed(level=Level(kv_usage=0.97), queue={"max_requests": 2}) as b:
        waiting = [b.send(), b.send()]
        await until(lambda: b.runtime.statistics().queued == 2)
        response = await b.post()
        assert response.status_code == 429
        assert response.json()["error"]["reason"] in ("queue_full", "tenant_queue_full", "displaced")
        assert response.headers["x-ratelimit-limit"] == "2"
        assert response.headers["x-ratelimit-remaining"] == "0"
        b.level.kv_usage = 0.0
        assert [(await sent).status_code for sent in waiting] == [200, 200]


async def test_a_vip_goes_first() -> None:
    """Priority comes from the configured key."""
    order: list[str] = []

    class Recorder(App):
        async def __call__(self, scope, receive, send):  # type: ignore[no-untyped-def]
            if scope["type"] == "http":
                order.append(dict(scope["headers"]).get(b"authorization", b"").decode())
            await super().__call__(scope, receive, send)

    tenants = [{"name": "gold", "keys": ["gold"], "priority_class": "vip"}]
    async with bed(Recorder(), Level(kv_usage=0.97), tenants=tenants, kv={"max_sequences": 1}) as b:
        bulk = [b.send(headers={"authorization": "Bearer nobody"}) for _ in range(3)]
        await until(lambda: b.runtime.statistics().queued == 3)
        vip = b.send(headers={"authorization": "Bearer gold"})
        await until(lambda: b.runtime.statistics().queued == 4)
        b.level.kv_usage = 0.0
        await asyncio.gather(vip, *bulk)
        assert order[0] == "Bearer gold"


async def test_a_burst_between_two_readings_sees_its_own_weight() -> None:
    """The level stands at zero, yet not everything passes: the charge is made at the decision."""
    async with bed(level=Level(kv_usage=0.0, capacity_tokens=4000)) as b:
        b.app.go.clear()
        burst = [b.send({"prompt": f"{n} " + "x" * 1500, "max_tokens": 500}) for n in range(20)]
        await until(lambda: b.app.running + b.runtime.statistics().queued == 20)
        assert 1 <= b.app.running <= 4
        b.app.go.set()
        assert {(await sent).status_code for sent in burst} == {200}


async def test_the_lease_is_held_until_the_response_has_ended() -> None:
    """A stream holds its slot to its last byte, and not longer."""
    async with bed() as b:
        b.app.go.clear()
        sent = b.send()
        await until(lambda: b.app.running == 1)
        assert b.runtime.statistics().running == 1
        b.app.go.set()
        await sent
        assert b.runtime.statistics().running == 0


async def test_a_caller_that_leaves_the_queue_takes_its_place_with_it() -> None:
    """No work is done for ghosts."""
    async with bed(level=Level(kv_usage=0.97)) as b:
        raws = [Raw(b.gate) for _ in range(5)]
        await until(lambda: b.runtime.statistics().queued == 5)
        for raw in raws:
            raw.leave()
        await asyncio.gather(*(raw.task for raw in raws))
        assert b.runtime.statistics().queued == 0
        assert b.app.started == 0
        assert b.count(EventKind.LEFT) == 5
        assert all(raw.sent == [] for raw in raws)


async def test_a_cancelled_request_task_leaves_the_queue() -> None:
    """Servers cancel the task at shutdown; that is a way of leaving too."""
    async with bed(level=Level(kv_usage=0.97)) as b:
        raw = Raw(b.gate)
        await until(lambda: b.runtime.statistics().queued == 1)
        raw.task.cancel()
        await asyncio.gather(raw.task, return_exceptions=True)
        assert b.runtime.statistics().queued == 0


async def test_a_running_caller_that_leaves_is_told_to_the_app_and_the_lease_ends_when_it_returns() -> None:
    """An app that ignores disconnects still holds KV."""

    class Stubborn(App):
        async def _answer(self, receive, send):  # type: ignore[no-untyped-def]
            await receive()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.saw_disconnect += 1
            await self.go.wait()

    app = Stubborn()
    app.go.clear()
    async with bed(app) as b:
        raw = Raw(b.gate)
        await until(lambda: app.running == 1)
        raw.leave()
        await until(lambda: app.saw_disconnect == 1)
        assert b.runtime.statistics().running == 1
        app.go.set()
        await raw.task
        assert b.runtime.statistics().running == 0


async def test_an_app_that_raises_frees_its_slot_and_its_error_passes_through() -> None:
    """The error is the app's, not ours to hide."""
    async with bed(kv={"max_sequences": 1}) as b:
        b.app.error = RuntimeError("model fell over")
        for _ in range(5):
            with pytest.raises(RuntimeError, match="model fell over"):
                await b.post()
        b.app.error = None
        assert (await b.post()).status_code == 200
        assert b.runtime.statistics().running == 0
        assert b.runtime.faults.count == 0


@pytest.mark.parametrize("status", [400, 422, 429, 503])
async def test_the_apps_own_refusal_passes_through_and_frees_the_slot(status: int) -> None:
    """Its status, its headers, its body; no Retry-After of ours on it."""
    async with bed() as b:
        b.app.status = status
        response = await b.post()
        assert response.status_code == status
        assert "retry-after" not in response.headers
        assert b.runtime.statistics().running == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"[]",
        b'{"prompt": "x"}',
        b'{"prompt": "x", "max_tokens": "100"}',
        b'{"prompt": "x", "max_tokens": -5}',
        b'{"prompt": "x", "max_tokens": 1e400}',
        b'{"prompt": "x", "max_tokens": true}',
        b'{"prompt": "x", "max_tokens": null}',
        b'{"prompt": 7}',
        b'{"prompt": "x", "n": "many"}',
    ],
)
async def test_a_bad_body_goes_to_the_app_unchanged(body: bytes) -> None:
    """The app answers for its own dialect; we never answer 500."""
    async with bed() as b:
        response = await b.post(body)
        assert response.status_code == 200
        assert b.app.bodies == [body]
        assert b.runtime.faults.count == 0


async def test_a_length_that_lies_is_no_trouble() -> None:
    """Content-Length is a hint here, nothing more."""
    async with bed() as b:
        for length in ("1", "999999", "-1", "nonsense"):
            raw = Raw(b.gate, b'{"prompt": "x"}', {"content-length": length})
            await raw.task
            assert raw.status == 200
        assert b.app.bodies == [b'{"prompt": "x"}'] * 4


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("OPTIONS", "/v1/completions"),
        ("HEAD", "/v1/completions"),
        ("POST", "/tokenize"),
    ],
)
async def test_what_is_not_inference_is_never_limited(method: str, path: str) -> None:
    """Overload must not make liveness fail."""
    async with bed(level=Level(kv_usage=0.99), queue={"max_requests": 1}) as b:
        waiting = b.send()
        await until(lambda: b.runtime.statistics().queued == 1)
        response = await b.client.request(method, path)
        assert response.status_code == 200
        b.level.kv_usage = 0.0
        await waiting


async def test_a_tenants_quota_refuses_and_whoever_waits_exactly_that_long_is_admitted() -> None:
    """The refusal books its place."""
    tenants = [{"name": "t", "keys": ["k"], "requests_per_s": 0.5, "request_burst": 1}]
    async with bed(tenants=tenants) as b:
        headers = {"authorization": "Bearer k"}
        assert (await b.post(headers=headers)).status_code == 200
        refused = await b.post(headers=headers)
        assert refused.status_code == 429
        assert refused.json()["error"]["reason"] == "rate_limited"
        assert refused.headers["x-ratelimit-limit"] == "1"
        await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1000)
        assert (await b.post(headers=headers)).status_code == 200


async def test_a_prompt_that_can_never_fit_is_refused_for_good() -> None:
    """No Retry-After, and SDKs are told not to try again."""
    async with bed(level=Level(capacity_tokens=1000)) as b:
        response = await b.post({"prompt": list(range(5000)), "max_tokens": 1})
        assert response.status_code == 413
        assert response.headers["x-should-retry"] == "false"
        assert "retry-after" not in response.headers
        assert response.json()["error"]["reason"] == "prompt_too_large"


async def test_a_huge_declared_maximum_is_no_reason_to_refuse() -> None:
    """Agents send 64k as a habit."""
    async with bed(level=Level(capacity_tokens=1000)) as b:
        assert (await b.post({"prompt": "x", "max_tokens": 65536})).status_code == 200


async def test_chinese_callers_read_chinese() -> None:
    """The message follows Accept-Language, the codes do not change."""
    async with bed(level=Level(kv_usage=0.97), classes=[{"name": "standard", "max_wait_s": 0.1}]) as b:
        response = await b.post(headers={"accept-language": "zh-CN,zh;q=0.9"})
        assert any("\u4e00" <= char <= "\u9fff" for char in response.json()["error"]["message"])
        assert response.json()["error"]["code"] == "RATE_LIMIT_EXCEEDED"


async def test_stream_chunks_pass_one_by_one_and_start_is_sent_once() -> None:
    """Nothing is buffered, nothing repeated."""
    app = App()
    app.chunks = [b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'] * 100 + [b"data: [DONE]\n\n"]
    async with bed(app) as b:
        raw = Raw(b.gate, json.dumps({"prompt": "x", "stream": True}).encode())
        await raw.task
        assert [m["type"] for m in raw.sent].count("http.response.start") == 1
        assert [m["body"] for m in raw.sent[1:]] == app.chunks


async def test_websocket_and_unknown_scopes_pass_untouched() -> None:
    """What is not ours is not looked at."""
    seen: list[str] = []

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        seen.append(scope["type"])

    async with bed(app) as b:
        for kind in ("websocket", "carrier-pigeon"):
            await b.gate({"type": kind, "path": "/chat", "headers": []}, None, None)  # type: ignore[arg-type]
    assert seen == ["websocket", "carrier-pigeon"]
