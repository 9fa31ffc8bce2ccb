"""The flood: bulk callers that come all at once, and one VIP that asks now and then.

Law of this file: callers behave as real ones do and count what they see. The naive caller has a short
time-out and tries again without being asked; the SDK caller waits as it is told. Both are given the
same requests, from the same seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from tidegate.demo.server import BULK_KEY, VIP_KEY
from tidegate_client import AsyncRetryTransport, RateLimited, RetryPolicy, WaitEvent

WORDS = (
    "tide",
    "gate",
    "water",
    "level",
    "lock",
    "canal",
    "harbour",
    "moon",
    "pilot",
    "rope",
    "mast",
    "keel",
)


# A connection each: one that is kept may be closed by the server just as the next request sets out on it.
NAIVE_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)
DONE: dict[str, object] = {}  # the event that ends a whole stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """What is sent. Times in seconds, lengths in words and tokens."""

    requests: int = 100
    arrive_within_s: float = 1.0
    prompt_words: tuple[int, int] = (100, 300)
    output_tokens: tuple[int, int] = (80, 200)
    vip_interval_s: float = 0.3
    vip_output_tokens: int = 16
    naive_timeout_s: float = 3.5
    naive_tries: int = 6
    naive_pause_s: float = 1.0
    deadline_s: float = 60.0
    fitting: int = 16  # how many of them the engine's cache holds, for the headline
    model: str = "simulated"
    seed: int = 7


@dataclass(slots=True)
class Tally:
    """What the callers saw."""

    whole: int = 0
    lost: int = 0
    refusals: int = 0
    retries: int = 0
    output_tokens: int = 0
    bulk_ttft_s: list[float] = field(default_factory=list)
    vip_ttft_s: list[float] = field(default_factory=list)
    vip_lost: int = 0
    makespan_s: float = 0.0


class Refused(Exception):
    """A 429 or 503 that the caller was told of."""


Caller = Callable[[str, dict[str, object], Flood, Tally, float], Awaitable[None]]


async def run(base_url: str, flood: Flood, caller: Caller, tally: Tally) -> None:
    """Send the flood and wait until every bulk request has an answer or has given up."""
    started_at = time.monotonic()
    done = asyncio.Event()
    vip = asyncio.create_task(_vip(base_url, flood, tally, done))
    await asyncio.gather(
        *(_arrive(base_url, flood, caller, tally, number) for number in range(flood.requests))
    )
    tally.makespan_s = time.monotonic() - started_at
    done.set()
    await vip


async def naive(base_url: str, body: dict[str, object], flood: Flood, tally: Tally, due_at: float) -> None:
    """Gives up after a short time and tries again at once, without looking at what it was told."""
    async with httpx.AsyncClient(base_url=base_url, timeout=flood.deadline_s, limits=NAIVE_LIMITS) as client:
        for attempt in range(flood.naive_tries):
            tally.retries += attempt > 0
            try:
                await asyncio.wait_for(_stream(client, body, BULK_KEY, tally, due_at), flood.naive_timeout_s)
            except asyncio.TimeoutError:
                pass  # it had waited long enough
            except (Refused, httpx.HTTPError):
                tally.refusals += 1
                await asyncio.sleep(flood.naive_pause_s)
            else:
                return
    tally.lost += 1


async def sdk(base_url: str, body: dict[str, object], flood: Flood, tally: Tally, due_at: float) -> None:
    """Waits as it is told, by the SDK."""

    def on_wait(event: WaitEvent) -> None:
        tally.refusals += 1
        tally.retries += 1

    transport = AsyncRetryTransport(policy=RetryPolicy(deadline_s=flood.deadline_s), on_wait=on_wait)
    async with httpx.AsyncClient(base_url=base_url, timeout=flood.deadline_s, transport=transport) as client:
        try:
            await _stream(client, body, BULK_KEY, tally, due_at)
        except (RateLimited, Refused, httpx.HTTPError):
            tally.lost += 1


async def _arrive(base_url: str, flood: Flood, caller: Caller, tally: Tally, number: int) -> None:
    rng = random.Random(flood.seed * 100_003 + number)  # noqa: S311 - load, not secrets
    await asyncio.sleep(rng.uniform(0, flood.arrive_within_s))
    words = rng.choices(WORDS, k=rng.randint(*flood.prompt_words))
    body: dict[str, object] = {
        "model": flood.model,
        # Each prompt starts in its own way: prompts that share a beginning share cache blocks.
        "prompt": f"{number} " + " ".join(words),
        "max_tokens": rng.randint(*flood.output_tokens),
        "ignore_eos": True,
        "stream": True,
    }
    await caller(base_url, body, flood, tally, time.monotonic())


async def _stream(
    client: httpx.AsyncClient, body: dict[str, object], key: str, tally: Tally, due_at: float
) -> None:
    headers = {"authorization": f"Bearer {key}"}
    ttft: float | None = None
    is_whole = False
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise Refused(response.status_code)
        async for event in _events(response):
            if ttft is None:
                ttft = time.monotonic() - due_at
            is_whole = is_whole or event is DONE
    expected = body["max_tokens"]
    if ttft is None or not is_whole or not isinstance(expected, int):
        raise Refused("the stream broke off")
    if key == VIP_KEY:
        tally.vip_ttft_s.append(ttft)
    else:
        tally.bulk_ttft_s.append(ttft)
        tally.whole += 1
        tally.output_tokens += expected


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, object]]:
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            yield DONE
        elif line.startswith("data: {"):
            yield json.loads(line[6:])


async def _vip(base_url: str, flood: Flood, tally: Tally, done: asyncio.Event) -> None:
    """One short streamed request after another, whatever the weather."""
    running: set[asyncio.Task[None]] = set()
    number = 0
    async with httpx.AsyncClient(base_url=base_url, timeout=flood.deadline_s, limits=NAIVE_LIMITS) as client:
        while not done.is_set():
            number += 1
            body: dict[str, object] = {
                "model": flood.model,
                "prompt": f"VIP {number}: how high is the water?",
                "max_tokens": flood.vip_output_tokens,
                "ignore_eos": True,
                "stream": True,
            }
            task = asyncio.create_task(_ask_as_vip(client, body, tally))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(flood.vip_interval_s)
        await asyncio.gather(*running)


async def _ask_as_vip(client: httpx.AsyncClient, body: dict[str, object], tally: Tally) -> None:
    try:
        await _stream(client, body, VIP_KEY, tally, time.monotonic())
    except (Refused, httpx.HTTPError):
        tally.vip_lost += 1
