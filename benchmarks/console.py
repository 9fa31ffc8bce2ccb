"""What the operator's page costs a busy server.

Run: python -m benchmarks.console [--rate 1000] [--rounds 8] [--seconds 5] [--json FILE]

- whole: a gated server in a process of its own answers chat requests at a fixed rate; its CPU time is read
  in windows with and without one viewer, in turns, and compared;
- alone: the CPU time of one second's work for the console (a history point, the text, one send), measured
  directly, with few and with many tenants in the snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import uvicorn

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.console import Console, ConsoleOptions
from tidegate.core.decisions import ClassStatistics, InstanceStatistics, Statistics, TenantStatistics

CONNECTIONS = 32
ANSWER = (
    b'{"id":"x","choices":[{"message":{"role":"assistant","content":"hi"}}],"usage":{"completion_tokens":2}}'
)
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 16}
).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer key-%d\r\n"
    b"content-type: application/json\r\ncontent-length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY
)
VIEWER = b"GET /tidegate/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the question and answers at once."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def serve(port: int) -> None:
    """The server under test: eight tenants, a level that wanders."""
    level = random.Random(1)
    tenants = [{"name": f"tenant-{n}", "keys": [f"key-{n}"]} for n in range(8)]
    app = AdmissionMiddleware(
        answering,
        settings=Settings.load(tenants=tenants),
        probe=lambda: Reading(
            kv_usage=level.uniform(0.3, 0.6), running=8, waiting=0, capacity_tokens=200_000
        ),
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", access_log=False)


async def _answered(reader: asyncio.StreamReader) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    return head.startswith(b"HTTP/1.1 200")


async def _caller(port: int, number: int, interval_s: float, counts: list[int]) -> None:
    """One connection that asks every `interval_s`, and does not catch up in bursts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    due = time.monotonic() + interval_s * number / CONNECTIONS
    while True:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        writer.write(REQUEST % (number % 8))
        counts[0 if await _answered(reader) else 1] += 1
        due = max(due + interval_s, time.monotonic())


async def _viewer(port: int, events: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(VIEWER)
    try:
        while chunk := await reader.read(65_536):
            events[0] += chunk.count(b"data: ")
    finally:
        writer.close()


@dataclass(frozen=True)
class Window:
    """One stretch of time."""

    has_viewer: bool
    cpu_share: float
    answered_per_s: float
    refused: int
    events: int


async def _window(
    process: psutil.Process, port: int, seconds: float, counts: list[int], look: bool
) -> Window:
    events = [0]
    viewer = asyncio.create_task(_viewer(port, events)) if look else None
    await asyncio.sleep(0.5)  # the first event with its history is over
    before, answered, refused, began = process.cpu_times(), counts[0], counts[1], time.monotonic()
    await asyncio.sleep(seconds)
    after, span_s = process.cpu_times(), time.monotonic() - began
    if viewer is not None:
        viewer.cancel()
        await asyncio.gather(viewer, return_exceptions=True)
    used_s = after.user + after.system - before.user - before.system
    return Window(look, used_s / span_s, (counts[0] - answered) / span_s, counts[1] - refused, events[0])


async def whole(port: int, rate: float, rounds: int, seconds: float) -> list[Window]:
    """Windows with and without a viewer, in turns; the order within a pair changes."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.console", "--serve", str(port)
    )
    try:
        await _until_up(port)
        process, counts = psutil.Process(server.pid), [0, 0]
        interval_s = CONNECTIONS / rate
        callers = [asyncio.create_task(_caller(port, n, interval_s, counts)) for n in range(CONNECTIONS)]
        await asyncio.sleep(2.0)
        windows = []
        for number in range(rounds):
            for look in (True, False) if number % 2 else (False, True):
                windows.append(await _window(process, port, seconds, counts, look))  # noqa: PERF401
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        return windows
    finally:
        server.terminate()
        await server.wait()


async def _until_up(port: int) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise SystemExit("the server did not come up")


class _Still:
    """A gate whose figures stand still."""

    mode = "enforce"
    count = 0

    def __init__(self, tenants: int) -> None:
        row = TenantStatistics(name="t", priority_class="standard", queued=3, running=1, virtual_tokens=1.0)
        self.now = Statistics(
            is_open=True,
            instances=(
                InstanceStatistics(
                    name="default", state="fresh", level=0.7, age_s=0.2, capacity_tokens=2e5, held_tokens=1e5,
                    projected_peak_tokens=1.5e5, high_watermark=0.95, margin=0.05, kp=0.9, leases=200,
                    waiting_in_engine=0, running_in_engine=200, preemptions=0,
                ),
            ),
            classes=tuple(
                ClassStatistics(name=name, queued=50, running=50, oldest_wait_s=2.0, kv_ceiling=1.0)
                for name in ("system", "vip", "standard", "batch")
            ),
            tenants=tuple(replace(row, name=f"tenant-{n}") for n in range(tenants)),
            refused={"queue_full": 9, "wait_too_long": 3},
        )  # fmt: skip

    @property
    def faults(self) -> _Still:
        return self

    def statistics(self) -> Statistics:
        return self.now


async def alone(tenants: int, ticks: int = 400) -> float:
    """CPU microseconds of one second's work with one viewer."""
    gate = _Still(tenants)
    console = Console(ConsoleOptions(), gate)
    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        return None

    scope = {"type": "http", "method": "GET", "path": "/tidegate/events", "query_string": b"",
             "client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost")]}  # fmt: skip
    viewer = asyncio.create_task(console(scope, receive, send))
    await asyncio.sleep(0.01)
    began = time.process_time()
    for _ in range(ticks):
        console.record(gate.now)
        for _ in range(4):
            await asyncio.sleep(0)  # the viewer's task takes and sends it
    used_s = time.process_time() - began
    gone.set()
    await viewer
    return used_s / ticks * 1e6


def report(windows: Sequence[Window], alone_us: dict[int, float], rate: float) -> dict[str, Any]:
    """The table, printed, and the same as data."""
    with_viewer = [window for window in windows if window.has_viewer]
    without = [window for window in windows if not window.has_viewer]
    pairs = [a.cpu_share - b.cpu_share for a, b in zip(with_viewer, without, strict=True)]
    result = {
        "rate_asked_per_s": rate,
        "rate_answered_per_s": statistics.median(window.answered_per_s for window in windows),
        "refused": sum(window.refused for window in windows),
        "events_seen": sum(window.events for window in with_viewer),
        "cpu_share_without": statistics.median(window.cpu_share for window in without),
        "cpu_share_with_one_viewer": statistics.median(window.cpu_share for window in with_viewer),
        "difference_median": statistics.median(pairs),
        "difference_each": [round(pair, 4) for pair in pairs],
        "alone_us_per_second": {str(tenants): round(used, 1) for tenants, used in alone_us.items()},
    }
    print(f"asked {rate:.0f}/s, answered {result['rate_answered_per_s']:.0f}/s, refused {result['refused']}")
    print(f"server CPU without a viewer    {result['cpu_share_without']:8.2%}")
    print(f"server CPU with one viewer     {result['cpu_share_with_one_viewer']:8.2%}")
    print(
        f"difference, median of pairs    {result['difference_median']:8.2%}   ({result['difference_each']})"
    )
    for tenants, used in alone_us.items():
        print(f"console alone, {tenants:5d} tenants   {used / 1e6:8.3%}   ({used:.0f} us of each second)")
    return result


def main() -> None:
    """Run, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--port", type=int, default=18321)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    alone_us = {tenants: asyncio.run(alone(tenants)) for tenants in (8, 200, 10_000)}
    windows = asyncio.run(whole(options.port, options.rate, options.rounds, options.seconds))
    result = report(windows, alone_us, options.rate)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
