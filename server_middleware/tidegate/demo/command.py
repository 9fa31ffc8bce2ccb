"""What `tidegate demo` does: three runs, live progress, one table.

Law of this file: it starts servers, floods them, and prints; it judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import IO

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidegate.demo.load import Caller, Flood, Tally, naive, run, sdk

READY_WITHIN_S = 30.0
REFRESH_S = 0.25
GAUGES_TIMEOUT_S = 60.0  # a starved server answers late


class DemoFailed(RuntimeError):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row of the table."""

    title: str
    gated: bool
    caller: Caller


SCENARIOS = (
    Scenario(title="no gate", gated=False, caller=naive),
    Scenario(title="gate", gated=True, caller=naive),
    Scenario(title="gate + SDK", gated=True, caller=sdk),
)


@dataclass(slots=True)
class Gauges:
    """What the engine says about itself."""

    kv_usage: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0


Starter = Callable[[bool], contextlib.AbstractAsyncContextManager[str]]
"""Brings up a server (`True`: gated) for the length of the `async with`; gives its address."""


async def demo(flood: Flood, console: Console, server: Starter, keep: bool) -> None:
    """Run every scenario and print the table.

    Raises:
        DemoFailed: a server did not come up.
    """
    rows: list[tuple[Scenario, Tally, int]] = []
    console.print(
        f"{flood.requests} long requests within {flood.arrive_within_s:g} s, and a short VIP request every "
        f"{flood.vip_interval_s:g} s, against an engine whose KV cache holds some {flood.fitting} of them.\n"
    )
    for scenario in SCENARIOS:
        async with server(scenario.gated) as url:
            rows.append((scenario, *await _flood(url, scenario, flood, console)))
    console.print(_table(rows))
    console.print(
        "The first two rows are naive callers: they give up after "
        f"{flood.naive_timeout_s:g} s, try again without looking at what they were told, "
        f"{flood.naive_tries} times in all. The third row waits as it is told.\n"
        "TTFT: from the moment the caller wanted an answer to its first token, waits and retries included. "
        "Lost: callers that gave up without an answer."
    )
    if keep:
        async with server(True) as url:
            console.print(_playground(url), soft_wrap=True)  # a line to be pasted must stay one
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


async def _flood(url: str, scenario: Scenario, flood: Flood, console: Console) -> tuple[Tally, int]:
    tally = Tally()
    before = (await _gauges(url)).preemptions
    work = asyncio.create_task(run(url, flood, scenario.caller, tally))
    gauges = Gauges()
    with Live(console=console, refresh_per_second=1 / REFRESH_S, transient=not console.is_terminal) as live:
        while not work.done():
            await asyncio.wait({work}, timeout=REFRESH_S)
            with contextlib.suppress(httpx.HTTPError):
                gauges = await _gauges(url)
            live.update(_progress(scenario.title, flood, tally, gauges, before))
    await work
    return tally, (await _gauges(url)).preemptions - before


def _progress(title: str, flood: Flood, tally: Tally, gauges: Gauges, before: int) -> str:
    filled = round(gauges.kv_usage * 20)
    bar = "█" * filled + "░" * (20 - filled)
    return (
        f"[bold]{title:<24}[/bold] KV {bar} {gauges.kv_usage:4.0%}  running {gauges.running:3d}  "
        f"waiting in engine {gauges.waiting:3d}  preempted {gauges.preemptions - before:4d}  "
        f"answered {tally.whole:3d}/{flood.requests}  refused {tally.refusals:3d}  lost {tally.lost:3d}"
    )


_COLUMNS = (
    "pre-\nempt.",
    "good-\nput\ntok/s",
    "whole",
    "lost",
    "refu-\nsals",
    "re-\ntries",
    "VIP\nTTFT\np50 s",
    "VIP\nTTFT\np95 s",
    "bulk\nTTFT\np50 s",
)


def _table(rows: list[tuple[Scenario, Tally, int]]) -> Table:
    table = Table(title="Before and after", title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for scenario, tally, preemptions in rows:
        table.add_row(
            scenario.title,
            str(preemptions),
            f"{tally.output_tokens / tally.makespan_s:,.0f}",
            str(tally.whole),
            str(tally.lost + tally.vip_lost),
            str(tally.refusals),
            str(tally.retries),
            _quantile(tally.vip_ttft_s, 0.5),
            _quantile(tally.vip_ttft_s, 0.95),
            _quantile(tally.bulk_ttft_s, 0.5),
        )
    return table


def _quantile(values: list[float], share: float) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.quantiles(values, n=100, method='inclusive')[round(share * 100) - 1]:.2f}"


def _playground(url: str) -> str:
    return (
        f"\nThe gated server is up at {url} until you press Ctrl-C. Try:\n\n"
        f"  curl -si {url}/v1/completions -H 'content-type: application/json' "
        '-d \'{"prompt": "How high is the water?", "max_tokens": 32}\'\n'
        f"  tidegate top {url}\n"
        f"  open {url}/tidegate/ in a browser (the operator's page)\n"
    )


async def _gauges(url: str) -> Gauges:
    async with httpx.AsyncClient(timeout=GAUGES_TIMEOUT_S) as client:
        text = (await client.get(f"{url}/metrics")).text
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            figures[sample.name] = sample.value
    return Gauges(
        kv_usage=figures.get("vllm:kv_cache_usage_perc", 0.0),
        running=int(figures.get("vllm:num_requests_running", 0)),
        waiting=int(figures.get("vllm:num_requests_waiting", 0)),
        preemptions=int(figures.get("vllm:num_preemptions_total", 0)),
    )


def running_servers(bare: str, gated: str) -> Starter:
    """Two servers that run already."""

    @contextlib.asynccontextmanager
    async def server(is_gated: bool) -> AsyncIterator[str]:
        yield (gated if is_gated else bare).rstrip("/")

    return server


@contextlib.asynccontextmanager
async def simulated_server(gated: bool) -> AsyncIterator[str]:
    """The engine simulator in a process of its own.

    Raises:
        DemoFailed: it did not come up.
    """
    port = _free_port()
    command = [sys.executable, "-m", "tidegate.demo.server", str(port), "gated" if gated else "bare"]
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed below; a log among live progress is unreadable
    process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module, started once
        command, stdout=log, stderr=subprocess.STDOUT
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await _until_ready(url, process, log)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        log.close()


async def _until_ready(url: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    async with httpx.AsyncClient() as client:
        while time.monotonic() < give_up_at:
            if process.poll() is not None:
                log.seek(0)
                said = log.read().decode("utf-8", "replace").strip()
                raise DemoFailed(f"The demo server ended with code {process.returncode}: {said}")
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise DemoFailed(f"The demo server did not answer at {url} within {READY_WITHIN_S:g} s.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
