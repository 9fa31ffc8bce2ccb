"""Enforce, shadow and off, and who may switch between them while the server runs."""

from __future__ import annotations

import pytest

from tests.server.bed import Level, bed, until
from tidegate.telemetry.events import EventKind

TOKEN = "correct-horse-battery"


async def test_shadow_counts_what_enforce_would_have_held_and_lets_it_pass() -> None:
    """Roll-out without risk."""
    async with bed(level=Level(kv_usage=0.97), mode="shadow", queue={"max_requests": 1}) as b:
        for _ in range(3):
            assert (await b.post()).status_code == 200
        assert b.count(EventKind.SHADOWED) == 3
        assert b.count(EventKind.REFUSED) == 0
        assert b.runtime.statistics().queued == 0


async def test_off_asks_the_gate_nothing() -> None:
    """The app alone, as if nothing stood before it."""
    async with bed(level=Level(kv_usage=0.97), mode="off") as b:
        assert (await b.post()).status_code == 200
        assert b.runtime.statistics().admitted == 0


async def test_the_mode_is_switched_while_streams_run_and_callers_wait() -> None:
    """The running stream is not touched; whoever waits goes on at once."""
    async with bed(kv={"max_sequences": 1}) as b:
        b.app.go.clear()
        running, waiting = b.send(), b.send()
        await until(lambda: b.runtime.statistics().queued == 1)
        b.gate.mode = "off"
        await until(lambda: b.app.running == 2)
        b.app.go.set()
        assert [(await sent).status_code for sent in (running, waiting)] == [200, 200]
        b.gate.mode = "enforce"
        assert (await b.post()).status_code == 200
        assert [event.reason for event in b.events if event.kind is EventKind.MODE] == [
            "enforce",
            "off",
            "enforce",
        ]


async def test_the_operator_switches_the_mode_by_http() -> None:
    """By curl and with the token; not by a web page, and the log's event says from where."""
    async with bed(console={"admin_token": TOKEN}) as b:
        url = "http://127.0.0.1/tidegate/mode"
        b.client.headers["authorization"] = f"Bearer {TOKEN}"
        assert (await b.client.put(url, content="shadow")).status_code == 200
        assert b.gate.mode == "shadow"
        assert (await b.client.put(url, content="loud")).status_code == 400
        assert (await b.client.put(url, content="off", headers={"origin": "http://evil"})).status_code == 403
        assert b.gate.mode == "shadow"
        said = [event.detail for event in b.events if event.kind is EventKind.MODE]
        assert said == ["at start", "by the operator at 127.0.0.1"]


async def test_the_switch_is_no_unknown_post() -> None:
    """A gate that guards every POST and PUT would else queue the very order that opens it."""
    async with bed(console={"admin_token": TOKEN}, guard={"guard_unknown_posts": True}) as b:
        answer = await b.client.put(
            "/tidegate/mode", content="off", headers={"authorization": f"Bearer {TOKEN}"}
        )
        assert (answer.status_code, answer.text) == (200, "mode is off\n")
        assert b.gate.mode == "off"
        assert b.app.started == 0


async def test_being_local_does_not_switch_the_mode() -> None:
    """A stranger behind a proxy on this machine looks local: with no token set the switch is off."""
    url = "http://127.0.0.1/tidegate/mode"
    async with bed() as b:
        refused = await b.client.put(url, content="off")
        assert refused.status_code == 403
        assert "TIDEGATE_CONSOLE__ADMIN_TOKEN" in refused.text
        assert b.app.started == 0
        await b.client.put(url, content="off", headers={"x-forwarded-for": "203.0.113.7"})
        assert b.app.started == 1, "for a stranger the path is the app's"
        assert b.gate.mode == "enforce"
    async with bed(console={"admin_token": TOKEN}) as b:
        assert (await b.client.put(url, content="off")).status_code == 401
        assert b.gate.mode == "enforce"


async def test_a_trusted_proxy_on_this_machine_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """It may make strangers look local; not where the page asks everybody for the token."""
    for allow, proxy, times in (
        (True, "0.0.0.0/0", 1),
        (True, "::1", 1),
        (True, "10.0.0.0/8", 0),
        (False, "::1", 0),
    ):
        caplog.clear()
        async with bed(identity={"trusted_proxies": [proxy]}, console={"allow_loopback": allow}):
            assert caplog.text.count("TIDEGATE_CONSOLE__ALLOW_LOOPBACK=false") == times


async def test_an_admin_token_opens_the_mode_from_anywhere() -> None:
    """And a wrong one does not."""
    async with bed(console={"admin_token": TOKEN, "allow_loopback": False}) as b:
        wrong = await b.client.put("/tidegate/mode", content="off", headers={"authorization": "Bearer nope"})
        assert wrong.status_code == 401
        right = await b.client.put(
            "/tidegate/mode", content="off", headers={"authorization": f"Bearer {TOKEN}"}
        )
        assert right.status_code == 200
        assert b.gate.mode == "off"
