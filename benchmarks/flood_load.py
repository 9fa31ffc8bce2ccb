"""One load generator of the flood benchmark, to be run in a process of its own; prints one JSON object.

    python -m benchmarks.flood_load jobs --url http://127.0.0.1:8000 --workload even --seed 1
    python -m benchmarks.flood_load vip --url http://127.0.0.1:8000        (until SIGTERM)

Law of this file: it says how late it was itself. A generator that shares its cores with an engine that spins
may measure its own starvation; the lateness of its timer stands beside every figure.

Workload "even": 150 jobs of 60-300 words, 200-600 output tokens, arriving within 4 s. "shift": the same
number, of which the first half has 20-60 words and 60-200 tokens, the second 600-1,000 words and 200-500
tokens. A job is sent again until it is answered. The VIP asks for 20 streamed tokens every 0.4 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from benchmarks.engine_bed import LOAD_NICE, MODEL, raise_priority

JOBS = 150
ARRIVAL_S = 4.0
VIP_EVERY_S = 0.4
VIP_TOKENS = 20
VIP_KEY = "vip-benchmark-key"
TICK_S = 0.02
# Words of the text that the bed's tokenizer was trained on: a token or two each, as in a real vocabulary.
WORDS = (
    "tide",
    "rises",
    "gate",
    "holds",
    "flood",
    "until",
    "there",
    "room",
    "behind",
    "request",
    "waits",
    "queue",
)


@dataclass(slots=True)
class Lateness:
    """How late this process's own timer fires, in seconds."""

    samples: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.samples.append(time.perf_counter() - due)

    def summary(self) -> dict[str, float]:
        """p50, p99 and the worst."""
        ordered = sorted(self.samples) or [0.0]
        return {
            "p50_s": ordered[len(ordered) // 2],
            "p99_s": ordered[int(len(ordered) * 0.99)],
            "max_s": ordered[-1],
        }


def make_jobs(workload: str, seed: int) -> list[tuple[float, str, int]]:
    """(arrival in seconds, prompt, output tokens) of each job, in order of arrival."""
    rng = random.Random(f"{workload}-{seed}")
    arrivals = sorted(rng.uniform(0, ARRIVAL_S) for _ in range(JOBS))
    jobs = []
    for number, at in enumerate(arrivals):
        if workload == "even":
            words, tokens = rng.randint(60, 300), rng.randint(200, 600)
        elif number < JOBS // 2:
            words, tokens = rng.randint(20, 60), rng.randint(60, 200)
        else:
            words, tokens = rng.randint(600, 1000), rng.randint(200, 500)
        # The number first: prompts that begin alike would share blocks.
        prompt = f"{rng.random()} " + " ".join(rng.choice(WORDS) for _ in range(words))
        jobs.append((at, prompt, tokens))
    return jobs


def _body(prompt: str, tokens: int, *, stream: bool) -> dict[str, object]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        "temperature": 1.0,
    }


def _pause_s(response: httpx.Response) -> float:
    """What the refusal says, to the millisecond where it does; else a second."""
    with suppress(KeyError, ValueError):
        return float(response.headers["retry-after-ms"]) / 1000
    with suppress(KeyError, ValueError):
        return float(response.headers["retry-after"])
    return 1.0


class _Jobs:
    """The flood."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self.client = client
        self.tries = 0
        self.output_tokens = 0
        self.prompt_tokens = 0
        self.latencies: list[float] = []
        self._random = random.Random(seed)

    async def run(self, workload: str, seed: int) -> dict[str, object]:
        began = time.perf_counter()
        jobs = make_jobs(workload, seed)
        await asyncio.gather(*(self._job(began + at, prompt, tokens) for at, prompt, tokens in jobs))
        makespan_s = time.perf_counter() - began
        return {
            "makespan_s": makespan_s,
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "goodput_tokens_per_s": self.output_tokens / makespan_s,
            "tries": self.tries,
            "latencies_s": self.latencies,
        }

    async def _job(self, at: float, prompt: str, tokens: int) -> None:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        sent = time.perf_counter()
        while True:
            self.tries += 1
            try:
                response = await self.client.post("/v1/completions", json=_body(prompt, tokens, stream=False))
            except httpx.TransportError:
                await asyncio.sleep(self._random.uniform(0.5, 1.5))
                continue
            if response.is_success:
                break
            if response.status_code not in (408, 429, 500, 502, 503, 504):
                raise RuntimeError(f"a job was answered {response.status_code}: {response.text[:300]}")
            await asyncio.sleep(_pause_s(response))
        usage = response.json()["usage"]
        self.output_tokens += usage["completion_tokens"]
        self.prompt_tokens += usage["prompt_tokens"]
        self.latencies.append(time.perf_counter() - sent)


class _Vip:
    """One short streamed request every 0.4 s, each from its own task so that a slow one delays no other."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.stop = asyncio.Event()
        self.refused = 0
        self.ttft_s: list[float] = []
        self.gate_wait_s: list[float] = []  # what the gate says of its own queue; zero without a gate
        self.total_s: list[float] = []

    async def run(self) -> dict[str, object]:
        due = time.perf_counter()
        asked: list[asyncio.Task[None]] = []
        stopped = asyncio.create_task(self.stop.wait())
        while not self.stop.is_set():
            asked.append(asyncio.create_task(self._ask(f"{due} the gate holds the flood")))
            due += VIP_EVERY_S
            await asyncio.wait([stopped], timeout=max(0.0, due - time.perf_counter()))
        await asyncio.gather(*asked)
        return {
            "ttft_s": self.ttft_s,
            "gate_wait_s": self.gate_wait_s,
            "total_s": self.total_s,
            "refused": self.refused,
        }

    async def _ask(self, prompt: str) -> None:
        sent = time.perf_counter()
        body = _body(prompt, VIP_TOKENS, stream=True)
        while True:
            async with self.client.stream("POST", "/v1/completions", json=body) as response:
                if response.is_success:
                    waited = re.search(r"tidegate;dur=([\d.]+)", response.headers.get("server-timing", ""))
                    self.gate_wait_s.append(float(waited[1]) / 1000 if waited else 0.0)
                    first = True
                    async for _ in response.aiter_bytes():
                        if first:
                            self.ttft_s.append(time.perf_counter() - sent)
                            first = False
                    self.total_s.append(time.perf_counter() - sent)
                    return
                self.refused += 1
            await asyncio.sleep(_pause_s(response))


async def _main(arguments: argparse.Namespace) -> dict[str, object]:
    lateness = Lateness()
    watch = asyncio.create_task(lateness.watch())
    headers = {"authorization": f"Bearer {VIP_KEY}"} if arguments.role == "vip" else {}
    # Kept for less than uvicorn's 5 s, or a request might set out on a connection that is being closed.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
    async with httpx.AsyncClient(
        base_url=arguments.url, headers=headers, limits=limits, timeout=600
    ) as client:
        if arguments.role == "vip":
            vip = _Vip(client)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, vip.stop.set)
            result = await vip.run()
        else:
            result = await _Jobs(client, arguments.seed).run(arguments.workload, arguments.seed)
    watch.cancel()
    return result | {"own_delay": lateness.summary()}


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=("jobs", "vip"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--workload", choices=("even", "shift"), default="even")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    raise_priority(LOAD_NICE - 2 if arguments.role == "vip" else LOAD_NICE)
    json.dump(asyncio.run(_main(arguments)), sys.stdout)


if __name__ == "__main__":
    main()
