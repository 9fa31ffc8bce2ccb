"""What the operator's page costs a busy server.

Run: python -m benchmarks.console [--rate 1000] [--seconds 20] [--json FILE]

- inside: a gated server in a process of its own answers chat requests at a fixed rate while one viewer
  watches; the CPU time of its thread is read around everything the console does each second (the history
  point, the text, the write to the socket) and set against the time that passed;
- alone: the CPU time of one second's work of the console with nothing else running, with few and with many
  tenants in the snapshot.

Two runs with and without a viewer are not compared: the difference is far below their noise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import uvicorn

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.console import Console, ConsoleOptions
from tidegate.core.statistics import ClassStatistics, InstanceStatistics, Statistics, TenantStatistics

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


class Meter:
    """CPU time spent for the console since the first viewer came. A write that waits counts too much."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.events = 0
        self.began: tuple[float, float] | None = None  # wall and CPU of the process

    def install(self) -> None:
        """Put the clock around the console's work."""
        record, call = Console.record, Console.__call__

        def metered_record(console: Console, now: Statistics) -> None:
            start = time.thread_time()
            record(console, now)
            self.spent_s += time.thread_time() - start

        async def metered_call(console: Console, scope: Scope, receive: Receive, send: Send) -> None:
            async def metered_send(message: Message) -> None:
                start = time.thread_time()
                await send(message)
                self.spent_s += time.thread_time() - start
                self.events += 1

            self.began = self.began or (time.monotonic(), time.process_time())
            self.spent_s = 0.0
            await call(console, scope, receive, metered_send)

        Console.record = metered_record  # type: ignore[method-assign, assignment]
        Console.__call__ = metered_call  # type: ignore[method-assign, assignment]

    def report(self) -> str:
        """Shares of one CPU, as JSON."""
        wall, cpu = self.began or (time.monotonic(), 0.0)
        span_s = time.monotonic() - wall
        shares = {
            "console_share": self.spent_s / span_s,
            "server_share": (time.process_time() - cpu) / span_s,
        }
        return json.dumps({**shares, "seconds": span_s, "events": self.events})


def serve(port: int) -> None:
    """The server under test: eight tenants, a level that hardly moves; prints the meter at the end."""
    meter = Meter()
    meter.install()
    tenants = [{"name": f"tenant-{n}", "keys": [f"key-{n}"]} for n in range(8)]
    wobble = random.Random(1)
    app = AdmissionMiddleware(
        answering,
        settings=Settings.load(tenants=tenants),
        probe=lambda: Reading(
            kv_usage=0.4 + wobble.random() / 100, running=8, waiting=0, capacity_tokens=200_000
        ),
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", access_log=False)
    print(meter.report(), flush=True)


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


async def _viewer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(VIEWER)
    try:
        while await reader.read(65_536):
            pass
    finally:
        writer.close()


async def inside(port: int, rate: float, seconds: float) -> dict[str, float]:
    """One viewer at `rate` requests a second."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.console", "--serve", str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        await _until_up(port)
        counts, interval_s = [0, 0], CONNECTIONS / rate
        tasks = [asyncio.create_task(_caller(port, n, interval_s, counts)) for n in range(CONNECTIONS)]
        await asyncio.sleep(2.0)
        tasks.append(asyncio.create_task(_viewer(port)))
        before = counts[0]
        await asyncio.sleep(seconds)
        answered = (counts[0] - before) / seconds
        server.send_signal(signal.SIGINT)  # after any other signal uvicorn ends the process itself
        output, _ = await asyncio.wait_for(server.communicate(), 20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found: dict[str, float] = json.loads(output.splitlines()[-1])
        return {**found, "asked_per_s": rate, "answered_per_s": answered, "refused": counts[1]}
    finally:
        if server.returncode is None:
            server.kill()


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


def main() -> None:
    """Run, print, and write JSON if asked."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=18321)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    alone_us = {tenants: asyncio.run(alone(tenants)) for tenants in (8, 200, 10_000)}
    found = asyncio.run(inside(options.port, options.rate, options.seconds))
    print(f"asked {options.rate:.0f}/s, answered {found['answered_per_s']:.0f}/s, {found['events']} writes")
    print(f"whole server              {found['server_share']:8.2%} of one CPU")
    print(f"its console, one viewer   {found['console_share']:8.3%} of one CPU")
    for tenants, used_us in alone_us.items():
        print(f"alone, {tenants:5d} tenants      {used_us / 1e6:8.3%}   ({used_us:.0f} us of each second)")
    if options.json:
        alone_told = {str(tenants): round(used_us, 1) for tenants, used_us in alone_us.items()}
        result = {"inside": found, "alone_us_per_second": alone_told}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
