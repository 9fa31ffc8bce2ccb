"""A load generator for the real engine, run as a process of its own: `python -m tests.engine.load URL SPEC`.

Law of this file: it sends what the JSON `SPEC` says when it says, obeys Retry-After, and prints one JSON
document with what came back and how late its own loop was; it judges nothing. It stays out of the test's
process because an engine that spins starves whoever shares a core with it, and is raised above it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from benchmarks.engine_bed import MODEL, ROOT, raise_priority

WORDS = ("tide", "gate", "flood", "room", "request", "queue", "cache", "token", "word", "answer", "names")
CALLER_TIMEOUT_S = 1200.0  # not a measure of anything: whoever is not answered by then never will be
TAIL_BYTES = 4096  # holds the last events of a stream: the finish reason and the usage


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request, sent `at_s` seconds after the start."""

    at_s: float = 0.0
    words: int
    output_tokens: int
    key: str | None = None
    stream: bool = True


@dataclass(kw_only=True)
class Outcome:
    """What one caller saw, over all its attempts."""

    statuses: list[int] = field(default_factory=list)
    retry_after: list[str | None] = field(default_factory=list)
    error_codes: list[str | None] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None
    admitted_s: float | None = None  # when the gate let it in, as Server-Timing says; None without a gate
    first_token_s: float | None = None
    total_s: float = 0.0
    failure: str | None = None


@dataclass(kw_only=True)
class Report:
    """All outcomes, in the order of the jobs."""

    outcomes: list[Outcome]
    makespan_s: float
    worst_delay_s: float


def prompt(words: int, seed: int) -> str:
    """Text that shares no prefix with that of another seed."""
    pick = random.Random(seed)
    return f"{seed} " + " ".join(pick.choice(WORDS) for _ in range(words))


async def call(client: httpx.AsyncClient, job: Job, seed: int, outcome: Outcome) -> None:
    """One caller: tries until it is answered, waiting as long as each refusal says; fills in the outcome."""
    started = time.monotonic()
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt(job.words, seed),
        "max_tokens": job.output_tokens,
        "ignore_eos": True,
        "stream": job.stream,
    }
    if job.stream:
        body["stream_options"] = {"include_usage": True}
    headers = {"authorization": f"Bearer {job.key}"} if job.key else {}
    while time.monotonic() - started < CALLER_TIMEOUT_S:
        sent_s = time.monotonic() - started
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            outcome.statuses.append(response.status_code)
            if response.status_code == 200:
                queued = re.search(r"tidegate;dur=([\d.]+)", response.headers.get("server-timing", ""))
                outcome.admitted_s = sent_s + float(queued[1]) / 1000 if queued else None
                await _read(response, job, outcome, started)
                break
            error = json.loads(await response.aread()).get("error", {})
            outcome.retry_after.append(response.headers.get("retry-after"))
            outcome.error_codes.append(error.get("code"))
        if outcome.retry_after[-1] is None:
            break
        await asyncio.sleep(float(outcome.retry_after[-1]))
    outcome.total_s = time.monotonic() - started


async def _read(response: httpx.Response, job: Job, outcome: Outcome, started: float) -> None:
    """Reads to the end; only the last events are parsed, since thousands a second would starve this loop."""
    if not job.stream:
        answer = json.loads(await response.aread())
        outcome.finish_reason = answer["choices"][0]["finish_reason"]
        _note_usage(answer["usage"], outcome)
        return
    tail = b""
    async for chunk in response.aiter_raw():
        if outcome.first_token_s is None:
            outcome.first_token_s = time.monotonic() - started
        tail = (tail + chunk)[-TAIL_BYTES:]
    for block in tail.split(b"\n\n")[1:]:
        if not block.startswith(b"data: {"):
            continue
        event = json.loads(block.removeprefix(b"data: "))
        for choice in event["choices"]:
            outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason
        if event.get("usage"):
            _note_usage(event["usage"], outcome)


def _note_usage(usage: dict[str, int], outcome: Outcome) -> None:
    outcome.prompt_tokens = usage["prompt_tokens"]
    outcome.completion_tokens = usage["completion_tokens"]


async def run(url: str, jobs: list[Job]) -> Report:
    """All jobs, each at its time."""
    started = time.monotonic()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    watch = asyncio.create_task(_worst_delay())
    async with httpx.AsyncClient(base_url=url, timeout=CALLER_TIMEOUT_S, limits=limits) as client:
        outcomes = await asyncio.gather(*(_one(client, job, index) for index, job in enumerate(jobs)))
    watch.cancel()
    return Report(outcomes=outcomes, makespan_s=time.monotonic() - started, worst_delay_s=await watch)


async def _one(client: httpx.AsyncClient, job: Job, seed: int) -> Outcome:
    await asyncio.sleep(job.at_s)
    outcome = Outcome()
    try:
        await call(client, job, seed, outcome)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        outcome.failure = repr(error)
    return outcome


async def _worst_delay(every_s: float = 0.02) -> float:
    """How late this loop was at its worst: above some 50 ms the latencies measured here are its own."""
    worst_s = 0.0
    try:
        while True:
            due = time.monotonic() + every_s
            await asyncio.sleep(every_s)
            worst_s = max(worst_s, time.monotonic() - due)
    except asyncio.CancelledError:
        return worst_s


def start(url: str, jobs: list[Job]) -> subprocess.Popen[str]:
    """Runs the jobs in a process of its own."""
    spec = json.dumps([asdict(job) for job in jobs])
    command = [sys.executable, "-m", "tests.engine.load", url, spec]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def collect(process: subprocess.Popen[str], timeout_s: float = CALLER_TIMEOUT_S + 60) -> Report:
    """Waits for a generator and returns what it saw.

    Raises:
        RuntimeError: it failed itself; what it printed about that stands in the test's own output.
        subprocess.TimeoutExpired: it is still at work after `timeout_s`.
    """
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(f"the load generator ended with {process.returncode}")
    document = json.loads(output)
    outcomes = [Outcome(**outcome) for outcome in document.pop("outcomes")]
    return Report(outcomes=outcomes, **document)


if __name__ == "__main__":
    raise_priority()
    print(json.dumps(asdict(asyncio.run(run(sys.argv[1], [Job(**job) for job in json.loads(sys.argv[2])])))))
