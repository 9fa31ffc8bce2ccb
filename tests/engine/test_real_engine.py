"""A burst that makes a bare vLLM preempt goes through the gate, and the engine never preempts.

The figures of both runs are printed (`pytest -s`, or the summary of a failure). Latencies are not asserted,
nor is anything that depends on them: two cores are shared by the engine, the gate and the generators.
"""

from __future__ import annotations

import asyncio
import statistics

import httpx
import pytest

from benchmarks.engine_bed import MODEL, READ_S, Engine
from tests.engine.load import CALLER_TIMEOUT_S, Job, Outcome, Report, collect, prompt, start
from tests.engine.watch import assert_no_lease_is_left, eventually, state
from tidegate.testing import EngineOptions, EngineSimulator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

OUTPUT_TOKENS = 600
BURST = [Job(words=250, output_tokens=OUTPUT_TOKENS, stream=index % 4 != 3) for index in range(72)]
FLOODS = 8  # at most, through the gate; the bare engine preempts about eighty times in each
VIP_KEY = "demo-vip-key"  # as examples/vllm/tidegate.toml names it
VIPS = [Job(words=10, output_tokens=20, key=VIP_KEY, at_s=1.0 + 0.4 * index) for index in range(30)]
CALLERS, LONG_TOKENS = 4, 2000


def flood(engine: Engine, name: str) -> tuple[Report, int]:
    """The burst, beside VIPs from a process of their own; prints a row; the report and the preemptions."""
    before = engine.metric("vllm:num_preemptions_total")
    bulk_process = start(engine.url, BURST)
    vip_process = start(engine.url, VIPS)
    bulk, vip = collect(bulk_process), collect(vip_process)
    preemptions = int(engine.metric("vllm:num_preemptions_total") - before)
    for outcome in vip.outcomes:
        assert outcome.failure is None
        assert outcome.statuses[-1] == 200
    first_token_s = sorted(o.first_token_s for o in vip.outcomes if o.first_token_s is not None)
    refusals = sum(len(o.retry_after) for o in bulk.outcomes)
    tokens = sum(o.completion_tokens for o in bulk.outcomes)
    print(
        f"\n{name}: {preemptions} preemptions, {tokens / bulk.makespan_s:.0f} output tokens/s, "
        f"{refusals} refusals, VIP first token p50 {statistics.median(first_token_s):.3f} s, "
        f"max {first_token_s[-1]:.3f} s of {len(first_token_s)}, "
        f"generators late by {bulk.worst_delay_s:.3f} s and {vip.worst_delay_s:.3f} s at worst"
    )
    return bulk, preemptions


def is_whole(outcome: Outcome) -> bool:
    """Whether the caller got every token it asked for."""
    return outcome.completion_tokens == OUTPUT_TOKENS and outcome.finish_reason == "length"


def test_bare_the_burst_preempts(bare: Engine) -> None:
    """The bed is worth something only if the bare engine does preempt."""
    report, preemptions = flood(bare, "bare")
    assert all(is_whole(outcome) for outcome in report.outcomes)
    assert preemptions > 0


def test_bare_a_burst_that_comes_at_once_preempts_as_often_as_the_simulator_says(bare: Engine) -> None:
    """All prompts in one request: the engine has them all at its start, however slow the machine."""
    before = bare.metric("vllm:num_preemptions_total")
    prompts = [prompt(job.words, seed) for seed, job in enumerate(BURST)]
    body = {"model": MODEL, "prompt": prompts, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    answer = httpx.post(f"{bare.url}/v1/completions", json=body, timeout=CALLER_TIMEOUT_S).raise_for_status()
    prompt_tokens = answer.json()["usage"]["prompt_tokens"] // len(prompts)
    preemptions = int(bare.metric("vllm:num_preemptions_total") - before)
    simulated = simulated_preemptions([prompt_tokens] * len(prompts))
    print(f"\n{preemptions} preemptions, the simulator {simulated} under the same burst")
    assert simulated / 2 < preemptions < simulated * 2


def simulated_preemptions(prompt_tokens: list[int]) -> int:
    """What the simulator of the same size makes of the same burst."""
    options = EngineOptions(num_blocks=128, block_tokens=128, max_sequences=64, max_model_tokens=2048)
    engine, now_s = EngineSimulator(options), 0.0
    for number, tokens in enumerate(prompt_tokens):
        engine.submit(number, prompt_tokens=tokens, output_tokens=OUTPUT_TOKENS)
    while engine.has_work:
        now_s = engine.step(now_s).ends_at_s
    return engine.stats().preemptions


def test_the_log_of_the_gate_is_seen(gated: Engine) -> None:
    """A package that vLLM's API server imports silences the root logger below errors."""
    assert "Tidegate: the level comes from" in gated.log.read_text()


def test_gated_the_same_burst_does_not_preempt_and_everybody_is_answered(gated: Engine) -> None:
    """Whole answers, or honest 429s which, obeyed, end in a whole answer.

    A server that is starved of CPU hears late how far its streams are and may overbook the engine by a few
    (so may a gate that has not learnt yet how many bytes a token has): what one such flood shows is no proof.
    """
    seen: list[int] = []
    while 0 not in seen and len(seen) < FLOODS:
        report, preemptions = flood(gated, f"gated, flood {len(seen) + 1}")
        seen.append(preemptions)
        assert "Tidegate: fault" not in gated.log.read_text()  # a fault opens the gate, and explains the rest
        for outcome in report.outcomes:
            assert outcome.failure is None
            assert set(outcome.statuses[:-1]) <= {429}
            assert all(wait is not None and int(wait) >= 1 for wait in outcome.retry_after)
            assert set(outcome.error_codes) <= {"RATE_LIMIT_EXCEEDED"}
            assert outcome.statuses[-1] == 200
            assert is_whole(outcome)
    assert 0 in seen, f"preemptions of each flood: {seen}\n{state(gated)}"


def test_gated_other_paths_pass_untouched(gated: Engine) -> None:
    """Health, metrics and models are never queued; our own figures stand beside vLLM's."""
    assert httpx.get(f"{gated.url}/health", timeout=READ_S).status_code == 200
    models = httpx.get(f"{gated.url}/v1/models", timeout=READ_S).json()
    assert models["data"][0]["max_model_len"] == 2048
    assert "\ntidegate_" in httpx.get(f"{gated.url}/metrics/", timeout=READ_S).text


def test_gated_vllm_s_own_errors_pass_untouched(gated: Engine) -> None:
    """A body that the gate cannot read goes to the app, whose answer the caller gets."""
    response = httpx.post(
        f"{gated.url}/v1/completions",
        content=b"{not json",
        headers={"content-type": "application/json"},
        timeout=READ_S,
    )
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "Bad Request"


def test_gated_a_request_that_can_never_fit_is_vllm_s_to_refuse_or_ours(gated: Engine) -> None:
    """Longer than the context: a permanent 4xx without Retry-After, never a wait."""
    body = {"prompt": "word " * 20_000, "max_tokens": 5}
    response = httpx.post(f"{gated.url}/v1/completions", json=body, timeout=READ_S)
    assert response.status_code in (400, 413)
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("stream", [True, False])
async def test_gated_a_caller_that_hangs_up_frees_its_place_in_the_engine(
    gated: Engine, stream: bool
) -> None:
    """Through the gate vLLM still sees the disconnect and aborts; the lease ends and the next one runs."""
    before = gated.metric("vllm:generation_tokens_total")
    answered = 0
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=gated.url, timeout=CALLER_TIMEOUT_S, limits=limits) as client:

        async def ask(name: int) -> None:
            """Again and again until cancelled, so that there is work whenever this test comes to look."""
            nonlocal answered
            while True:
                body = {
                    "prompt": f"{name} tide",
                    "max_tokens": LONG_TOKENS,
                    "ignore_eos": True,
                    "stream": stream,
                }
                async with client.stream("POST", "/v1/completions", json=body) as response:
                    response.raise_for_status()
                    async for _ in response.aiter_bytes():
                        pass
                answered += 1

        calls = [asyncio.create_task(ask(name)) for name in range(CALLERS)]
        try:
            await asyncio.to_thread(
                eventually,
                gated,
                "all callers have work in the engine, or one has failed",
                lambda: (
                    any(call.done() for call in calls) or gated.metric("vllm:num_requests_running") >= CALLERS
                ),
            )
        finally:
            failed = [call for call in calls if call.done()]
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        for call in failed:
            call.result()
    await asyncio.to_thread(assert_no_lease_is_left, gated)
    generated = gated.metric("vllm:generation_tokens_total") - before
    assert generated < (answered + CALLERS) * LONG_TOKENS  # what was hung up on was not generated to its end
    (after,) = collect(start(gated.url, [Job(words=5, output_tokens=1)])).outcomes
    assert after.statuses == [200]
