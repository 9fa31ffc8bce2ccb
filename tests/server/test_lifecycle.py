"""Start, stop and loops: how the middleware lives inside a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.server.bed import App, Raw
from tests.server.processes import PATIENCE_S, ROOT, SERVERS
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.runtime import Runtime
from tidegate.asgi.types import Message


async def drive_lifespan(gate: AdmissionMiddleware, *messages: str) -> list[Message]:
    """Send lifespan messages and collect the answers."""
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    for kind in messages:
        incoming.put_nowait({"type": f"lifespan.{kind}"})
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await gate({"type": "lifespan", "asgi": {"version": "3.0"}}, incoming.get, send)
    return sent


async def test_it_starts_with_the_app_and_stops_with_it() -> None:
    """The poller runs between startup and shutdown and leaves no task behind."""
    gate = AdmissionMiddleware(App(), settings=Settings.load(metrics=False), probe=lambda: 0.1)
    before = asyncio.all_tasks()
    sent = await drive_lifespan(gate, "startup", "shutdown")
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"settings": 7}, "settings is 7"),
        ({"probe": 7}, "probe is 7"),
    ],
)
async def test_a_wrong_argument_is_told_by_startup_failed(arguments: dict[str, Any], told: str) -> None:
    """The server says why it does not start; it never answers 500 to everything."""
    sent = await drive_lifespan(AdmissionMiddleware(App(), **arguments), "startup")
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert told in sent[0]["message"]


async def test_a_wrong_setting_is_told_by_startup_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The field, the value and the way out; by the server, which logs it, and not by us once more."""
    monkeypatch.setenv("TIDEGATE_KV__HIGH_WATERMARK", "82")
    sent = await drive_lifespan(AdmissionMiddleware(App()), "startup")
    assert "kv.high_watermark is 82.0" in sent[0]["message"]
    assert "0.82" in sent[0]["message"]
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["uvicorn-h11", "hypercorn", "granian"])
def test_a_server_that_does_not_start_says_why_once(name: str) -> None:
    """On each of them, in what it prints."""
    command = [part.format(port=0, app="tests.server.misconfigured_app:app") for part in SERVERS[name]]
    environ = {**os.environ, "TIDEGATE_KV__HIGH_WATERMARK": "82"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        check=False,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    printed = (done.stdout + done.stderr).decode()
    assert printed.count("kv.high_watermark is 82.0: set a fraction above 0 and up to 1.") == 1, printed


async def test_without_lifespan_a_wrong_setting_is_a_503_that_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarded requests are told the name, the log the rest; health still works."""
    monkeypatch.setenv("TIDEGATE_MODE", "enforced")
    gate = AdmissionMiddleware(App())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://x") as client:
        refused = await client.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert "see mode." in refused.json()["error"]["message"]
        assert "enforced" not in refused.text, "a value may be a secret"
        assert (await client.get("/health")).status_code == 200
    assert [line for line in caplog.messages if "mode is 'enforced'" in line] == [
        "Tidegate is not configured: mode is 'enforced': choose 'enforce', 'shadow' or 'off'."
    ]


def test_one_middleware_serves_two_event_loops() -> None:
    """Built at import, used under two `asyncio.run`: nothing is bound to a dead loop."""
    gate = AdmissionMiddleware(App(), settings=Settings.load(metrics=False), probe=lambda: 0.1)

    async def once() -> int:
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            status = (await client.post("/v1/completions", json={"prompt": "x"})).status_code
        assert gate._runtime is not None
        await gate._runtime.stop()
        return status

    for _ in range(2):
        gate.app = App()  # its own event belongs to a loop as well
        assert asyncio.run(once()) == 200


def test_two_loops_side_by_side_keep_a_gate_each() -> None:
    """A sync endpoint that calls its own app by `asyncio.run` in a thread: queue, leases and pollers of the
    server's loop stay as they are.
    """
    gate = AdmissionMiddleware(App(), settings=Settings.load(metrics=False), probe=lambda: 0.1)
    gates: list[Runtime | None] = []

    async def once() -> int:
        gate.app = App()
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            status = (await client.post("/v1/completions", json={"prompt": "x"})).status_code
        gates.append(gate._runtime)
        return status

    async def outer() -> int:
        for _ in range(3):
            assert await once() == 200
            tasks = len(asyncio.all_tasks())
            assert await asyncio.to_thread(asyncio.run, once()) == 200
        assert len(asyncio.all_tasks()) <= tasks
        assert gates[0] is not None
        await gates[0].stop()
        return len(set(gates[::2]))

    assert asyncio.run(outer()) == 1
    assert len(gate._runtimes) == 2, "the server's and the last of the others"


def test_a_gate_that_was_switched_off_stays_so_in_every_further_loop() -> None:
    """Else the way out of trouble would not hold for an endpoint that calls its own app in a thread."""
    settings = Settings.load(metrics=False, default_tenant={"requests_per_s": 0.001, "request_burst": 1})
    gate = AdmissionMiddleware(App(), settings=settings, probe=lambda: 0.1)

    async def twice() -> list[int]:
        gate.app = App()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://x") as client:
            sent = [await client.post("/v1/completions", json={"prompt": "x"}) for _ in range(2)]
        return [answer.status_code for answer in sent]

    async def outer() -> None:
        assert await twice() == [200, 429]
        gate.mode = "off"
        assert await asyncio.to_thread(asyncio.run, twice()) == [200, 200]
        assert gate.mode == "off"
        for runtime in gate._runtimes.values():
            if runtime.loop is asyncio.get_running_loop():
                await runtime.stop()

    asyncio.run(outer())


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
@pytest.mark.parametrize(
    ("handler", "most"),
    # From Python 3.11 on `asyncio.run` has a handler of its own in the place of the usual one.
    [("signal.default_int_handler", int(sys.version_info >= (3, 11))), ("interrupt", 1)],
)
def test_the_signals_outlive_a_loop_that_nobody_has_told_us_the_end_of(handler: str, most: int) -> None:
    """A script or a notebook has no lifespan: Ctrl-C works afterwards, and handlers do not pile up."""
    script = """
import asyncio, signal
import httpx
from tests.server.bed import App
from tidegate import AdmissionMiddleware, Settings

async def once():
    gate = AdmissionMiddleware(App(), settings=Settings.load(metrics=False), probe=lambda: 0.1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://x") as client:
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, HANDLER)  # a background job has it ignored
for _ in range(3):
    asyncio.run(once())
depth, handler = 0, signal.getsignal(signal.SIGINT)
while type(getattr(handler, "__self__", None)).__name__ == "ShutdownListener":
    depth, handler = depth + 1, handler.__self__._previous[signal.SIGINT]
try:
    signal.raise_signal(signal.SIGINT)  # of this very thread: another's would not wake it
except KeyboardInterrupt:
    print("interrupted", depth, type(getattr(signal.getsignal(signal.SIGINT), "__self__", None)).__name__)
"""
    command = [sys.executable, "-c", script.replace("HANDLER", handler)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert said.stdout.startswith(f"interrupted {most} "), said.stdout + said.stderr
    assert "ShutdownListener" not in said.stdout


async def test_one_loop_may_start_and_stop_the_app_twice() -> None:
    """The second start is a fresh gate, not one that is still draining."""
    gate = AdmissionMiddleware(App(), settings=Settings.load(metrics=False), probe=lambda: 0.1)
    for _ in range(2):
        await drive_lifespan(gate, "startup", "shutdown")
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    up = asyncio.Event()

    async def send(message: Message) -> None:
        up.set()

    life = asyncio.create_task(gate({"type": "lifespan", "asgi": {"version": "3.0"}}, incoming.get, send))
    await up.wait()
    raw = Raw(gate, b"{}")
    await raw.task
    assert raw.status == 200
    incoming.put_nowait({"type": "lifespan.shutdown"})
    await life
