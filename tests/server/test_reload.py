"""Tenants read anew while the server runs: as a whole or not at all, and with the admin token only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.bed import App, Level, bed, until
from tidegate import AdmissionMiddleware, Settings, processes
from tidegate.asgi.operator import Operator
from tidegate.orders import Orders
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.testing import FakeClock

TOKEN = "correct-horse-battery"
HEAD = f"""
metrics = false
[console]
admin_token = "{TOKEN}"
"""
GOLD = """
[[tenants]]
name = "gold"
keys = ["gold"]
requests_per_s = 0.001
request_burst = 1
"""

TWICE = """
[[tenants]]
name = "a"
keys = ["k-secret"]
[[tenants]]
name = "b"
keys = ["k-secret"]
"""


class Served:
    """A gate whose settings stand in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.app = App()
        self.events: list[AdmissionEvent] = []
        self.clock = FakeClock()
        self.gate = AdmissionMiddleware(self.app, probe=Level(), clock=self.clock, hooks=[self.events.append])
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.gate), base_url="http://localhost")

    async def reload(self, text: str | None = None, **headers: str) -> httpx.Response:
        if text is not None:
            self.file.write_text(HEAD + text)
        return await self.client.post(
            "/tidegate/reload", headers={"authorization": f"Bearer {TOKEN}", **headers}
        )

    async def ask(self, key: str = "gold", **body: Any) -> int:
        """The status of one guarded request."""
        response = await self.client.post(
            "/v1/completions",
            json={"prompt": "x", "max_tokens": 4, **body},
            headers={"authorization": f"Bearer {key}"},
        )
        return response.status_code

    def last(self) -> tuple[str, str]:
        """Whose request was admitted last, and in which class."""
        event = [event for event in self.events if event.kind is EventKind.ADMITTED][-1]
        return event.tenant, event.priority_class


@asynccontextmanager
async def served(file: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> AsyncIterator[Served]:
    file.write_text(HEAD + text)
    monkeypatch.setenv("TIDEGATE_CONFIG", str(file))
    made = Served(file)
    runtime = made.gate._running()
    try:
        await until(lambda: runtime.statistics().instances[0].level is not None)
        yield made
    finally:
        await made.client.aclose()
        await runtime.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tidegate.toml"


async def test_a_quota_is_raised_without_a_restart(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At three in the morning: edit the file, one curl."""
    async with served(file, monkeypatch, GOLD) as s:
        assert [await s.ask() for _ in range(2)] == [200, 429]
        answer = await s.reload(GOLD.replace("0.001", "0.5"))
        assert (answer.status_code, answer.text) == (200, "tenants are read anew\n")
        assert await s.ask() == 429, "a change of the rate is no gift"
        s.clock.advance(2.0)
        assert [await s.ask() for _ in range(2)] == [200, 429]


async def test_keys_classes_and_field_policies_follow(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is added, another withdrawn; who it was is not remembered by the key."""
    async with served(file, monkeypatch, '[[tenants]]\nname = "one"\nkeys = ["a"]\n') as s:
        assert await s.ask("a", n=4) == 200
        assert s.last() == ("one", "standard")
        changed = '[[tenants]]\nname = "two"\nkeys = ["a"]\npriority_class = "vip"\n'
        changed += 'fields = {max_parallel = 1}\n[[tenants]]\nname = "three"\nkeys = ["b"]\n'
        assert (await s.reload(changed + '[default_tenant]\npriority_class = "batch"\n')).status_code == 200
        assert await s.ask("a", n=4) == 400
        assert await s.ask("a") == 200
        assert s.last() == ("two", "vip")
        assert await s.ask("b") == 200
        assert s.last() == ("three", "standard")
        assert await s.ask("nobody") == 200
        assert s.last() == ("address-127.0.0.1", "batch")
        assert (await s.reload("")).status_code == 200
        assert await s.ask("b") == 200
        assert s.last() == ("address-127.0.0.1", "standard")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('[[tenants]]\nname = "gold"\nrequests_per_s = -1\n', "tenants[gold].requests_per_s is -1"),
        ("[[tenants", "is not valid TOML"),
        (TWICE, "share a key"),
        ('[[tenants]]\nname = "gold"\npriority_class = "express"\n', "express"),
        ('[[tenants]]\nname = "gold"\nkeyz = ["x"]\n', "keyz"),
    ],
)
async def test_where_anything_is_wrong_nothing_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: str, told: str
) -> None:
    """The answer and the log say what, and no key."""
    async with served(file, monkeypatch, GOLD) as s:
        assert await s.ask() == 200
        caplog.clear()
        answer = await s.reload(wrong)
        assert answer.status_code == 400
        assert answer.text.startswith("nothing has changed: ")
        assert told in answer.text
        assert told in caplog.text
        assert "k-secret" not in answer.text + caplog.text
        assert await s.ask() == 429
        assert s.gate._running().settings.tenants[0].name == "gold"


async def test_a_file_that_is_gone_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one without the tenants' class, which comes with a restart only."""
    async with served(file, monkeypatch, GOLD) as s:
        file.unlink()
        assert (await s.reload()).status_code == 400
        new_class = GOLD + 'priority_class = "express"\n[[classes]]\nname = "express"\n'
        answer = await s.reload(new_class + '[default_tenant]\npriority_class = "express"\n')
        assert answer.status_code == 400
        assert "express" in answer.text
        assert [await s.ask() for _ in range(2)] == [200, 429]


async def test_what_waits_for_a_restart_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tenants follow, the rest does not; the mode has a switch of its own."""
    async with served(file, monkeypatch, GOLD) as s:
        file.write_text('mode = "off"\n' + HEAD + "[kv]\nhigh_watermark = 0.5\n")
        with caplog.at_level(logging.WARNING, "tidegate"):
            answer = await s.reload()
        assert answer.text == "tenants are read anew; a restart is needed for kv\n"
        assert (
            "Tidegate: Tenants read anew (by the operator at 127.0.0.1): 0. A restart is needed for kv."
            in caplog.messages
        )
        assert [await s.ask() for _ in range(2)] == [200, 200]
        assert s.gate.mode == "enforce"


async def test_a_fresh_gate_after_a_fault_has_the_new_limits(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made from the options in force, not from those of the start."""
    async with served(file, monkeypatch, GOLD) as s:
        await s.reload(GOLD.replace("burst = 1", "burst = 2"))
        s.gate._running().room.reset()
        assert [await s.ask() for _ in range(3)] == [200, 200, 429]


async def test_a_further_event_loop_serves_the_tenants_read_last(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app may be called from threads with loops of their own."""
    async with served(file, monkeypatch, GOLD) as s:
        await s.reload(GOLD.replace("gold", "silver"))

        async def elsewhere() -> list[str]:
            runtime = s.gate._running()
            await runtime.stop()
            return [tenant.name for tenant in runtime.settings.tenants]

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == ["silver"]


async def test_it_takes_the_token_and_no_web_page(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the mode; also under `guard_unknown_posts`, and for strangers the path is the app's."""
    async with served(file, monkeypatch, GOLD) as s:
        assert (await s.reload(authorization="Bearer wrong")).status_code == 401
        assert (await s.reload("", origin="http://evil")).status_code == 403
        assert (await s.client.put("/tidegate/reload")).status_code == 405
        assert [await s.ask() for _ in range(2)] == [200, 429]
    async with served(file, monkeypatch, "[guard]\nguard_unknown_posts = true\n") as s:
        assert (await s.reload()).status_code == 200
    monkeypatch.delenv("TIDEGATE_CONFIG")
    async with bed() as b:
        refused = await b.client.post("http://localhost/tidegate/reload")
        assert (refused.status_code, b.app.started) == (403, 0)
        await b.client.post("http://localhost/tidegate/reload", headers={"x-forwarded-for": "203.0.113.7"})
        assert b.app.started == 1


async def test_settings_given_by_the_program_are_its_own() -> None:
    """There is nothing to read."""
    async with bed(console={"admin_token": TOKEN}) as b:
        answer = await b.client.post("/tidegate/reload", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 409
        assert "given by the program" in answer.text


class FakeGate:
    """Takes orders and notes them."""

    def __init__(self) -> None:
        self.settings = Settings(metrics=False)
        self.mode: Any = "enforce"
        self.renewed: list[int] = []

    def set_mode(self, mode: str, why: str) -> None:
        self.mode = mode

    def renew(self, settings: Settings) -> None:
        self.renewed.append(len(settings.tenants))


def test_every_worker_reads_anew_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were there; one that begins later has read the new file itself."""
    monkeypatch.setattr(processes, "is_worker", lambda: True)
    monkeypatch.setattr(processes, "workers", lambda: 2)
    right = Settings.load(metrics=False, tenants=[{"name": "gold"}])
    answers: list[Settings | ValueError] = [right]

    def load() -> Settings:
        answer = answers[-1]
        if isinstance(answer, ValueError):
            raise answer
        return answer

    gates = [FakeGate() for _ in range(3)]
    one, other, late = (Operator(gate, Orders("/tidegate", tmp_path), load) for gate in gates)
    one.follow()
    other.follow()
    assert one.reload("10.0.0.1")[1].startswith("tenants are read anew, and in a second or two in the other")
    late.follow()
    for _ in range(3):
        one.follow()
        other.follow()
        late.follow()
    assert [gate.renewed for gate in gates] == [[1], [1], []]
    other.switch("shadow", "10.0.0.2")
    one.follow()
    assert gates[0].renewed == [1], "a switch is no reload"
    late.reload("10.0.0.3")
    answers.append(ValueError("planted"))
    assert one.reload("10.0.0.1") == (400, "nothing has changed: planted"), "and nobody is told of it"
    other.follow()
    late.follow()
    assert [gate.renewed for gate in gates] == [[1], [1], [1]]
    assert [gate.mode for gate in gates] == ["shadow"] * 3
    answers.append(right)
    other.follow()
    assert one.reload("10.0.0.1")[0] == 200
    assert gates[0].renewed == [1, 1]
