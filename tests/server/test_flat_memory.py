"""Memory stays flat under traffic (case Q1): whatever becomes of a request, nothing of it stays behind.

Thousands of requests of every fate in a process of their own, on a fake clock; the bytes that Python holds
are counted. What the gate remembers on purpose is bounded, and full before the counting begins.
A table that happens to be enlarged grows once, what is left behind always: the middle of three is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi import background
from tidegate.asgi.classify import segments
from tidegate.asgi.conversations import MOST_REMEMBERED
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.console import snapshot
from tidegate.core import lengths
from tidegate.telemetry.prometheus import PrometheusHook
from tidegate.testing import FakeClock
from tidegate.testing.clock import settle

ROOT = Path(__file__).resolve().parents[2]
WARM_UP_ROUNDS, STRETCHES, ROUNDS = 420, 3, 80  # rounds of 26 requests each; Python 3.10 settles late
MOST_BYTES_A_ROUND = 32  # one entry of a dictionary with its name and value takes more
STRANGERS = 50


class Answers:
    """An app that does what the body asks."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        asked = json.loads(message.get("body") or b"{}")
        if asked.get("fate") == "raise":
            raise RuntimeError("planted")
        if asked.get("fate") == "hold":
            await self.go.wait()
        status = 500 if asked.get("fate") == "fail" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "input_tokens": 3, "output_tokens": 2}
        for _ in range(3 if asked.get("stream") else 0):
            event = b'data: {"choices": [{"text": "tok"}]}\n\n'
            await send({"type": "http.response.body", "body": event, "more_body": True})
        answer = {"id": asked.get("id"), "status": asked.get("status", "completed"), "usage": usage}
        if scope["method"] == "GET":
            answer["id"] = scope["path"].rpartition("/")[2]
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


class Traffic:
    """Sends requests and counts them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.app = Answers()
        settings = Settings.load(
            metrics=False,
            kv={"max_sequences": 6},
            fields={"max_parallel": 1},
            identity={"max_credentials": 16, "end_user_header": "X-User"},
            max_tenants=64,
            tenants=[
                {"name": "gold", "keys": ["gold"]},
                {"name": "spent", "keys": ["spent"], "requests_per_s": 10, "request_burst": 1},
            ],
        )
        self.statuses: dict[int, int] = {}
        self.has_queued = False
        self.sent = 0
        self.gate = AdmissionMiddleware(
            self.app,
            settings,
            probe=self._idle,
            clock=self.clock,
            hooks=[PrometheusHook(CollectorRegistry())],
        )

    async def _idle(self) -> Reading:
        return Reading(kv_usage=0.1, waiting=0, running=1, capacity_tokens=100_000, block_tokens=16)

    async def ask(
        self, *, key: str = "gold", method: str = "POST", path: str = "/v1/completions", **body: Any
    ) -> None:
        """One request to its end; its names, key and body are its own."""
        await self._begin(key, method, path, body)[0]

    def _begin(
        self, key: str, method: str, path: str, body: dict[str, Any]
    ) -> tuple[Awaitable[None], Callable[[Message], None]]:
        self.sent += 1
        own = f"{self.sent:08d}"
        lines = {"authorization": f"Bearer {key}", "x-request-id": own, "idempotency-key": own}
        lines |= {"x-user": f"u{self.sent % 7}"}
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
            "client": (f"10.0.0.{self.sent % 3}", 1),
        }
        incoming: asyncio.Queue[Message] = asyncio.Queue()
        content = json.dumps({"model": "m", "prompt": own, "max_tokens": 8, **body}).encode()
        incoming.put_nowait({"type": "http.request", "body": content})

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                self.statuses[status] = self.statuses.get(status, 0) + 1

        async def run() -> None:
            with contextlib.suppress(RuntimeError):
                await self.gate(scope, incoming.get, send)

        return run(), incoming.put_nowait

    async def round(self) -> None:
        """Requests of every fate."""
        for _ in range(4):
            await self.ask()
            await self.ask(stream=True)
        await self.ask(fate="fail")
        await self.ask(fate="raise")
        await self.ask(n=9)  # a field that is refused
        for _ in range(2):
            await self.ask(key="spent")
        await self.ask(key=f"stranger-{self.sent % STRANGERS}")
        await self.ask(method="GET", path="/health")
        await self._respond()
        await self._crowd()
        self.clock.advance(0.5)
        self.gate._running().ticker.tick()

    async def _respond(self) -> None:
        """In the background: one whose end is seen, one that nobody asks for."""
        for name in ("seen", "unseen"):
            id_ = f"resp_{name}{self.sent}"
            await self.ask(path="/v1/responses", background=True, id=id_, status="queued")
            if name == "seen":
                await self.ask(method="GET", path=f"/v1/responses/{id_}")

    async def _crowd(self) -> None:
        """More than run at once: some wait and are let in, one leaves the queue, one leaves its answer."""
        self.app.go.clear()
        begun = [self._begin("gold", "POST", "/v1/completions", {"fate": "hold"}) for _ in range(8)]
        tasks = [asyncio.ensure_future(run) for run, _ in begun]
        await settle()
        self.has_queued |= self.gate._running().statistics().queued >= 2
        begun[7][1]({"type": "http.disconnect"})
        begun[0][1]({"type": "http.disconnect"})
        await settle()
        self.app.go.set()
        await asyncio.gather(*tasks)


async def measure() -> dict[str, Any]:
    """Traffic of every fate; how many bytes each stretch of it left behind."""
    logging.getLogger("tidegate").disabled = True
    background.BOUND_S, lengths.WINDOW, snapshot.HISTORY_POINTS = 1.0, 16, 16  # soon full
    traffic = Traffic()
    runtime = traffic.gate._running()
    tracemalloc.start()
    for number in range(2_000):  # the paths remembered
        runtime.routes.match({"type": "http", "method": "GET", "path": f"/v1/responses/{number}"})
        segments(f"/v1/responses/{number}")
    for number in range(MOST_REMEMBERED):
        runtime._builder._conversations.observed(f"resp_{number:032}", 1)
    for _ in range(WARM_UP_ROUNDS):
        await traffic.round()
    held = [held_bytes()]
    for _ in range(STRETCHES):
        for _ in range(ROUNDS):
            await traffic.round()
        held.append(held_bytes())
    await runtime.stop()
    return {
        "grown": [after - before for before, after in pairwise(held)],
        "statuses": sorted(traffic.statuses),
        "has_queued": traffic.has_queued,
    }


def held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.timeout(600)  # every allocation is traced
def test_nothing_of_a_request_stays_behind() -> None:
    """Neither of those admitted, refused, queued, gone, failed, nor of any book that was kept for them."""
    command = [sys.executable, "-m", "tests.server.test_flat_memory"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["statuses"] == [200, 400, 429, 500]
    assert seen["has_queued"]
    assert median(seen["grown"]) <= MOST_BYTES_A_ROUND * ROUNDS, (
        f"{seen['grown']} bytes in {ROUNDS} rounds each"
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
