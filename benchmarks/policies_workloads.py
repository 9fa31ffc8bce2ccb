"""The traffic of the policy benchmark: seeded lists of jobs, and the engine they are meant for.

Law of this file: tokens and seconds, no policy. Lengths are heavy tailed as measured ones are; the prompt
estimate is off by 10 % (one sigma), as an estimate learnt from bytes is.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.policies_world import Job
from tidegate.testing.engine_values import EngineOptions

Lengths = Callable[[random.Random], tuple[int, int]]
"""(prompt, output) of one request."""

ENGINE = EngineOptions(
    num_blocks=5001,  # 80,000 tokens are handed out
    block_tokens=16,
    max_sequences=512,  # so that KV is the limit
    max_batched_tokens=8192,
    max_model_tokens=8192,
    step_s=0.02,
    prefill_s_per_token=0.00003,
    decode_s_per_sequence=0.00002,
)
SLOTS = EngineOptions(
    num_blocks=100_001,
    max_sequences=32,
    max_model_tokens=8192,
    step_s=0.02,
    prefill_s_per_token=0.0,
    decode_s_per_sequence=0.0,
)
"""32 slots: KV is never the limit; 200 tokens take 4 s."""


def _lognormal(rng: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return int(min(most, max(least, rng.lognormvariate(0.0, sigma) * median)))


def even(rng: random.Random) -> tuple[int, int]:
    """One mix throughout: prompts of about 300 tokens, answers of about 400, at most 2,048."""
    return _lognormal(rng, 220, 0.8, 16, 2000), _lognormal(rng, 270, 0.9, 8, 2048)


def bimodal(rng: random.Random) -> tuple[int, int]:
    """Seven of ten answers are short, the others twenty times as long."""
    output = rng.randint(30, 120) if rng.random() < 0.7 else rng.randint(1000, 2000)
    return _lognormal(rng, 220, 0.8, 16, 2000), output


def short(rng: random.Random) -> tuple[int, int]:
    """Chat: small prompts, short answers."""
    return rng.randint(20, 100), rng.randint(60, 200)


def long_prompts(rng: random.Random) -> tuple[int, int]:
    """Documents: prompts of thousands of tokens, middling answers."""
    return rng.randint(1500, 4000), rng.randint(200, 500)


def shared_prompts(rng: random.Random) -> tuple[int, int]:
    """A long system prompt and a short question."""
    return 1024 + rng.randint(16, 200), _lognormal(rng, 270, 0.9, 8, 2048)


def slots(rng: random.Random) -> tuple[int, int]:
    """Two to six seconds of service, four on average."""
    return 16, rng.randint(100, 300)


def make_job(id_: int, arrives_s: float, lengths: Lengths, rng: random.Random, **fields: object) -> Job:
    """One job; its prompt is known only by an estimate."""
    prompt, output = lengths(rng)
    job = Job(
        id=id_,
        arrives_s=arrives_s,
        prompt=prompt,
        output=output,
        prompt_estimate=prompt * rng.lognormvariate(0, 0.1),
    )
    for name, value in fields.items():
        setattr(job, name, value)
    return job


def poisson(
    lengths: Lengths,
    rate_per_s: float,
    from_s: float,
    until_s: float,
    rng: random.Random,
    *,
    first_id: int = 0,
    tenants: int = 8,
    declared: int | None = 2048,
    exact_maximum: bool = False,
    **fields: object,
) -> list[Job]:
    """Arrivals at random, tenants at random. `exact_maximum`: answers use all they declare."""
    jobs: list[Job] = []
    at = from_s
    while (at := at + rng.expovariate(rate_per_s)) < until_s:
        job = make_job(first_id + len(jobs), at, lengths, rng, **fields)
        if "tenant" not in fields:
            job.tenant = f"tenant-{rng.randrange(tenants)}"
        job.max_tokens = job.output if exact_maximum else declared
        jobs.append(job)
    return jobs


def merge(*streams: list[Job]) -> list[Job]:
    """All jobs in the order of arrival, renumbered."""
    jobs = sorted((job for stream in streams for job in stream), key=lambda job: job.arrives_s)
    for number, job in enumerate(jobs):
        job.id = number
    return jobs
