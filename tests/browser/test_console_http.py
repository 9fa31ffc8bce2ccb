"""The console's routes without a browser: who may look, what is told, and how streams end."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from tests.browser.fake_gate import FakeGate, instance, statistics
from tests.browser.serving import PATIENCE_S
from tidegate.asgi.types import Message, Scope
from tidegate.console import ConsoleOptions
from tidegate.console.app import MAX_VIEWERS
from tidegate.console.snapshot import HISTORY_POINTS, MAX_TENANTS, History, describe
from tidegate.core.statistics import TenantStatistics

TOKEN = "correct horse battery staple"
WITH_TOKEN = ConsoleOptions(admin_token=SecretStr(TOKEN))


def request_scope(
    path: str = "/tidegate/state.json",
    *,
    client: tuple[str, int] | None = ("127.0.0.1", 5000),
    headers: dict[str, str] | None = None,
    **changed: Any,
) -> Scope:
    """A GET as a server hands it over."""
    address, _, query = path.partition("?")
    lines = {"host": "localhost:8000", **(headers or {})}
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": address,
        "root_path": "",
        "query_string": query.encode(),
        "client": client,
        "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
    }
    return {**scope, **changed}


async def answer_to(gate: FakeGate, scope: Scope) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await gate.app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message["body"] for message in sent[1:])


def basic(password: str) -> dict[str, str]:
    """What a browser sends after its password box."""
    return {"authorization": "Basic " + base64.b64encode(f"admin:{password}".encode()).decode()}


FAR = ("203.0.113.9", 5000)
LOOKS = [
    pytest.param(ConsoleOptions(), {}, 200, id="this machine"),
    pytest.param(ConsoleOptions(), {"client": ("::1", 1)}, 200, id="this machine, IPv6"),
    pytest.param(ConsoleOptions(), {"client": ("::ffff:127.0.0.1", 1)}, 200, id="this machine, mapped"),
    pytest.param(ConsoleOptions(), {"headers": {"host": "[::1]:8000"}}, 200, id="IPv6 host"),
    pytest.param(ConsoleOptions(), {"client": FAR}, 404, id="a stranger gets the app's answer"),
    pytest.param(ConsoleOptions(), {"client": None}, 404, id="a unix socket is a proxy's"),
    pytest.param(
        ConsoleOptions(), {"headers": {"x-forwarded-for": "8.8.8.8"}}, 404, id="a proxy on this machine"
    ),
    pytest.param(ConsoleOptions(), {"http_version": "1.0"}, 404, id="nginx as it comes, by its HTTP/1.0"),
    pytest.param(ConsoleOptions(), {"headers": {"connection": "close"}}, 404, id="nginx, by its Connection"),
    pytest.param(ConsoleOptions(), {"headers": {"host": "evil.example"}}, 404, id="a rebound name"),
    pytest.param(
        ConsoleOptions(), {"headers": {"host": "127.0.0.1.evil.example"}}, 404, id="a name like an address"
    ),
    pytest.param(ConsoleOptions(enabled=False), {}, 404, id="switched off"),
    pytest.param(ConsoleOptions(allow_loopback=False), {}, 404, id="no loopback, no token"),
    pytest.param(WITH_TOKEN, {"client": FAR}, 401, id="a stranger is asked for the token"),
    pytest.param(WITH_TOKEN, {"client": FAR, "headers": basic(TOKEN)}, 200, id="the token as password"),
    pytest.param(WITH_TOKEN, {"client": FAR, "headers": basic("wrong")}, 401, id="a wrong password"),
    pytest.param(
        WITH_TOKEN, {"client": FAR, "headers": {"authorization": f"Bearer {TOKEN}"}}, 200, id="the token"
    ),
    pytest.param(
        WITH_TOKEN, {"client": FAR, "headers": {"authorization": "Basic %%%"}}, 401, id="not base64"
    ),
    pytest.param(WITH_TOKEN, {"client": FAR, "headers": {"authorization": "Bearer "}}, 401, id="empty"),
]


@pytest.mark.parametrize(("options", "changed", "status"), LOOKS)
async def test_who_may_look(options: ConsoleOptions, changed: dict[str, Any], status: int) -> None:
    """Only callers on this machine or with the token; for others there is no console."""
    got, headers, body = await answer_to(FakeGate(options), request_scope(**changed))
    assert got == status
    assert ("x-from" in headers) == (status == 404)
    if status == 401:
        assert headers["www-authenticate"].startswith("Basic ")
        assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    ("field", "value"),
    [("path", "tidegate"), ("path", "/"), ("path", "/a/"), ("path", "/a/../b"), ("admin_token", "short")],
)
def test_wrong_options_name_the_field(field: str, value: str) -> None:
    """A path or token that cannot work is refused, and the token is not repeated in the message."""
    with pytest.raises(ValidationError, match=field):
        ConsoleOptions.model_validate({field: value})


async def test_state_tells_the_figures_and_only_those() -> None:
    """The JSON has level, peak, classes, tenants, refusals and five minutes of history."""
    gate = FakeGate(WITH_TOKEN)
    gate.live_through(HISTORY_POINTS + 50)
    _, headers, body = await answer_to(gate, request_scope())
    state = json.loads(body)
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert state["instances"][0]["level"] == 0.73
    assert state["instances"][0]["projected_peak"] == pytest.approx(0.892, abs=0.001)
    assert list(state["refused"]) == ["queue_full", "wait_too_long", "rate_limited", "too_early"]
    assert {len(values) for values in state["history"].values()} == {HISTORY_POINTS}
    assert TOKEN.encode() not in body
    _, _, short = await answer_to(gate, request_scope("/tidegate/state.json?history=0"))
    assert "history" not in json.loads(short)


@pytest.mark.parametrize("name", ["", "console.js", "console.css", "plots.js", "icon.svg"])
async def test_page_files(name: str) -> None:
    """Each file comes with its type and a policy that lets nothing else in; HEAD sends no body."""
    gate = FakeGate()
    status, headers, body = await answer_to(gate, request_scope(f"/tidegate/{name}"))
    assert status == 200
    assert body
    assert headers["content-length"] == str(len(body))
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    head = request_scope(f"/tidegate/{name}", method="HEAD")
    assert (await answer_to(gate, head))[2] == b""


async def test_routes_around_the_page() -> None:
    """No slash is redirected, what is not there is 404, other methods are 405, other paths the app's."""
    gate = FakeGate()
    status, headers, _ = await answer_to(gate, request_scope("/tidegate"))
    assert (status, headers["location"]) == (307, "/tidegate/")
    below = request_scope("/gw/tidegate/state.json", root_path="/gw")
    assert (await answer_to(gate, below))[0] == 200
    mounted = request_scope("/gw/tidegate", root_path="/gw")
    assert (await answer_to(gate, mounted))[1]["location"] == "/gw/tidegate/"
    assert (await answer_to(gate, request_scope("/tidegate/../secrets")))[0] == 404
    assert (await answer_to(gate, request_scope("/tidegate/", method="POST")))[0] == 405
    assert "x-from" in (await answer_to(gate, request_scope("/tidegatex")))[1]


class Viewer:
    """One open stream of events."""

    def __init__(self, gate: FakeGate) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.left = asyncio.Event()
        self.task = asyncio.create_task(
            gate.app(request_scope("/tidegate/events"), self._receive, self.messages.put)
        )

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def next(self) -> Message:
        """The next message that was sent."""
        return await asyncio.wait_for(self.messages.get(), PATIENCE_S)

    async def event(self) -> dict[str, Any]:
        """The next event's data."""
        body: bytes = (await self.next())["body"]
        found: dict[str, Any] = json.loads(body.rpartition(b"data: ")[2])
        return found


async def test_events_begin_with_history_and_go_on_with_points() -> None:
    """One connection: everything once, then each second's point."""
    gate = FakeGate()
    gate.live_through(10)
    viewer = Viewer(gate)
    assert (await viewer.next())["status"] == 200
    assert len((await viewer.event())["history"]["level"]) == 11
    await asyncio.sleep(0)
    gate.tick(queued=5)
    second = await viewer.event()
    assert "history" not in second
    assert second["point"]["queued"] == 5
    viewer.left.set()
    await asyncio.wait_for(viewer.task, PATIENCE_S)


async def test_close_ends_every_stream() -> None:
    """A stopping server does not wait for those who watch, and takes no new viewers."""
    gate = FakeGate()
    viewers = [Viewer(gate) for _ in range(3)]
    for viewer in viewers:
        await viewer.event() if (await viewer.next())["status"] == 200 else pytest.fail("refused")
    gate.console.close()
    await asyncio.wait_for(asyncio.gather(*(viewer.task for viewer in viewers)), PATIENCE_S)
    assert (await Viewer(gate).next())["status"] == 503


async def test_viewers_are_bounded_and_their_seats_come_back() -> None:
    """One viewer too many is told so; a place is free again once somebody leaves."""
    gate = FakeGate()
    viewers = [Viewer(gate) for _ in range(MAX_VIEWERS)]
    for viewer in viewers:
        assert (await viewer.next())["status"] == 200
    assert (await Viewer(gate).next())["status"] == 503
    viewers[0].left.set()
    await asyncio.wait_for(viewers[0].task, PATIENCE_S)
    late = Viewer(gate)
    assert (await late.next())["status"] == 200
    gate.console.close()
    await asyncio.wait_for(asyncio.gather(late.task, *(viewer.task for viewer in viewers)), PATIENCE_S)


async def test_cancelled_viewer_leaves_nothing_behind() -> None:
    """A server that cancels the request frees the seat and the watching task."""
    gate = FakeGate()
    before = asyncio.all_tasks()
    viewer = Viewer(gate)
    await viewer.next()
    await viewer.event()
    viewer.task.cancel()
    await asyncio.gather(viewer.task, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_history_rates_survive_a_restart_of_the_counters() -> None:
    """A counter that went back is no negative rate, and the first point has no rate at all."""
    history = History()
    assert history.record(statistics(admitted=100), 0.0).admitted_per_s == 0
    assert history.record(statistics(admitted=120), 2.0).admitted_per_s == 10
    assert history.record(statistics(admitted=3), 3.0).admitted_per_s == 0
    assert history.record(statistics(admitted=3), 3.0).admitted_per_s == 0  # the same instant twice


def test_unknown_is_null_never_zero() -> None:
    """No level, no capacity and no instance are null in the point and in the state."""
    blind = statistics(instances=(instance(level=None, capacity_tokens=None, state="blind"),))
    point = History().record(blind, 0.0)
    assert (point.level, point.peak) == (None, None)
    assert describe(blind, "enforce", "1", 0.0)["instances"][0]["projected_peak"] is None
    assert History().record(statistics(instances=()), 0.0).watermark is None


def test_hottest_instance_is_the_one_in_the_history() -> None:
    """Of several instances the fullest is remembered, in any order."""
    rows = (instance("a", level=0.2), instance("b", level=0.9), instance("c", level=None))
    for order in (rows, rows[::-1]):
        assert History().record(statistics(instances=order), 0.0).level == 0.9


def test_who_is_refused_most_stands_on_top() -> None:
    """Whoever has all its requests refused has no work here, and is the one to be seen."""
    refused = {"hammer": 900, "search-team": 3}
    rows = describe(statistics(), "enforce", "1", 0.0, refused)["tenants"]
    assert (rows[0]["name"], rows[0]["refused_last_minute"], rows[0]["running"]) == ("hammer", 900, 0)
    assert {row["name"]: row["refused_last_minute"] for row in rows}["search-team"] == 3
    assert {row["name"]: row["refused_last_minute"] for row in rows}["nightly-eval"] == 0


def test_many_tenants_are_cut_to_the_heaviest() -> None:
    """Ten thousand tenants do not become ten thousand lines."""
    rows = tuple(
        TenantStatistics(name=f"t{n}", priority_class="standard", queued=n, running=0, virtual_tokens=0.0)
        for n in range(10_000)
    )
    state = describe(statistics(tenants=rows), "enforce", "1", 0.0)
    assert [row["name"] for row in state["tenants"][:2]] == ["t9999", "t9998"]
    assert len(state["tenants"]) == MAX_TENANTS
    assert state["tenants_hidden"] == 10_000 - MAX_TENANTS
