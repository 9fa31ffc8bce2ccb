"""Whether one engine takes a request now: each bound by itself."""

from __future__ import annotations

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.decisions import Admit, Reason, Refuse
from tidegate.core.options import GateOptions, KvOptions
from tidegate.core.reading import Reading
from tidegate.core.verdict import Verdict


def test_burst_between_two_samples_sees_its_own_weight() -> None:
    """A thousand requests at one instant: only as many start as fit by their future peak."""
    driver = Driver()
    driver.read(0.0)
    started = sum(isinstance(driver.offer(), Admit) for _ in range(100))
    assert started == 9, "ten requests of 10 + 90 tokens fill 1,000; half a block each is kept"


def test_lone_request_always_starts_and_is_clamped() -> None:
    """A declared maximum of 64k on a small engine is a habit, not a refusal."""
    driver = Driver()
    admit = driver.admit(prompt_tokens=600, max_output_tokens=64_000)
    assert driver.predicted(admit) == 400


@pytest.mark.parametrize(
    ("floor", "sequences", "context", "permanent"),
    [
        (1001, 1, None, True),
        (1000, 1, None, False),
        (3000, 3, None, False),
        (500, 1, 500, True),
        (499, 1, 500, False),
    ],
)
def test_only_what_is_certain_is_refused_for_good(
    floor: int, sequences: int, context: int | None, permanent: bool
) -> None:
    """A prompt whose certain part exceeds the cache or the context; never an estimate."""
    driver = Driver(wide(max_model_tokens=context))
    decision = driver.offer(prompt_tokens=5000, prompt_tokens_floor=floor, sequences=sequences)
    assert isinstance(decision, Refuse) == permanent
    if isinstance(decision, Refuse):
        assert decision.reason is Reason.PROMPT_TOO_LARGE
        assert decision.retry_after_s is None
        assert str(floor) in decision.detail


def test_embeddings_hold_their_prompt_only() -> None:
    """Nothing is generated, nothing is predicted."""
    driver = Driver()
    admit = driver.admit(generates=False, prompt_tokens=100, sequences=3)
    assert driver.predicted(admit) == 0
    assert driver.instance.ledger.peak_tokens() == pytest.approx(101.5)
    assert driver.release(admit.ticket, prompt_tokens=90) == []


def test_above_the_watermark_nothing_starts_and_each_look_wants_a_reading() -> None:
    """Looks come after full jitter up to the cap; a reading below re-opens at once, in order."""
    driver = Driver(wide(high_watermark=0.8))
    running = driver.admit()
    driver.read(0.85, running=1)
    waiting = driver.queue("late")
    looks = []
    for _ in range(12):
        assert driver.step.wake_at is not None
        looks.append(driver.step.wake_at - driver.now)
        assert driver.pass_s(looks[-1]) == []
        assert driver.step.wants_reading
        driver.read(0.85, running=1, generation_tokens=driver.now)
    assert looks[0] == pytest.approx(0.025)
    assert max(looks) == pytest.approx(0.25)
    assert driver.read(0.79, running=1) == [], "hysteresis"
    assert driver.read(0.76, running=1) == [waiting.ticket]
    driver.release(running.ticket)


def test_answers_charged_with_their_declared_maximum_need_no_wide_watermark() -> None:
    """Their peak is an upper bound: while nobody runs who may outlive it, the watermark is out of the way."""
    driver = Driver(GateOptions(kv=KvOptions(capacity_tokens=100_000)))
    driver.read(0.0)
    assert driver.instance.high_watermark == 0.82
    driver.admit(max_output_tokens=20)
    driver.read(0.1)
    assert driver.instance.high_watermark == 0.96
    driver.admit(max_output_tokens=None)
    driver.read(0.1)
    assert driver.instance.high_watermark == 0.82


def test_the_smallest_of_the_top_class_may_use_the_margin() -> None:
    """What is kept free against wrong predictions is open to two per cent of the cache, no more."""
    driver = Driver(
        GateOptions(kv=KvOptions(capacity_tokens=10_000, margin=0.1, margin_min=0.1, high_watermark=1.0))
    )
    driver.read(0.0)
    driver.admit("t", "vip", prompt_tokens=8900, max_output_tokens=10)
    driver.cancel(driver.queue("t", "vip", prompt_tokens=300, max_output_tokens=10).ticket)
    driver.cancel(driver.queue("t", "standard", prompt_tokens=100, max_output_tokens=10).ticket)
    driver.admit("t", "vip", prompt_tokens=100, max_output_tokens=10)


def test_high_watermark_is_wide_only_once_capacity_and_lengths_are_known() -> None:
    """0.82 until then, 0.955 after; a value that is set always holds."""
    driver = Driver(GateOptions(kv=KvOptions(capacity_tokens=100_000)))
    assert driver.instance.high_watermark == 0.82
    for _ in range(60):
        driver.release(driver.admit().ticket, output_tokens=20)
    driver.read(0.0)
    assert driver.instance.high_watermark == 0.955
    assert driver.instance.low_watermark == pytest.approx(0.94)
    assert Driver(wide(high_watermark=0.7, low_watermark=0.5)).instance.low_watermark == 0.5


def test_one_hot_instance_takes_its_own_share_out() -> None:
    """Requests nobody routed go where it fits; a routed one waits for its own instance."""
    driver = Driver(wide(high_watermark=0.8))
    driver.step = driver.gate.observe(
        [
            Reading(kv_usage=0.95, instance="hot", running=9),
            Reading(kv_usage=0.1, instance="cool", running=0),
        ],
        driver.now,
        half,
    )
    assert driver.admit().instance == "cool"
    assert driver.admit(instance="cool").instance == "cool"
    driver.queue(instance="hot")
    assert driver.admit("other").instance == "cool", "a head that waits for another instance blocks nobody"


def test_engines_own_queue_and_its_bound_on_sequences_hold_requests_back() -> None:
    """The queue lives at the door; KV is often not the limit."""
    driver = Driver(wide(max_sequences=3))
    driver.admit(sequences=2)
    driver.admit()
    driver.queue()
    assert driver.gate._cycle.blocked_by is not None
    busy = Driver()
    busy.admit()
    busy.read(0.1, waiting=5, running=1)
    busy.read(0.1, waiting=5, running=1)
    waiting = busy.queue()
    assert busy.read(0.1, waiting=0, running=1) == [waiting.ticket]


def test_waiting_for_another_reason_than_capacity_does_not_close_the_gate() -> None:
    """An adapter being loaded is not a full engine."""
    driver = Driver()
    driver.admit()
    driver.read(0.1, waiting=9, waiting_for_capacity=0, running=1)
    driver.admit()


def test_a_full_engine_is_looked_at_again_with_a_fresh_reading() -> None:
    """Its queue may be gone long before the next regular reading."""
    driver = Driver()
    driver.admit()
    driver.read(0.1, waiting=5, running=1)
    driver.queue()
    assert driver.step.wants_reading


def test_a_full_cache_is_looked_at_again_with_a_fresh_reading() -> None:
    """What its prompts really hold, and how far its answers have come, is a reading away."""
    driver = Driver()
    driver.read(0.0)
    while isinstance(driver.offer(), Admit):
        pass
    assert driver.gate._cycle.blocked_by is Verdict.KV
    assert driver.step.wants_reading


def test_slow_tokens_lower_the_bound_on_what_runs_at_once() -> None:
    """With a target for the time between tokens, concurrency gives way to it."""
    driver = Driver(wide(capacity_tokens=10**6, target_inter_token_s=0.05))
    tickets = [driver.admit().ticket for _ in range(10)]
    for tokens in range(1, 6):
        driver.now += 1.0
        for ticket in tickets:
            driver.progress(ticket, tokens)
    driver.queue()
    assert driver.instance.max_sequences == 6


def test_reserve_is_lent_while_nobody_needs_it() -> None:
    """A lower class may fill the cache until somebody above it has been seen."""
    driver = Driver()
    lent = sum(isinstance(driver.offer("b", "batch"), Admit) for _ in range(12))
    kept = Driver()
    kept.gate.precheck("v", "vip", kept.now, half)
    own = sum(isinstance(kept.offer("b", "batch"), Admit) for _ in range(12))
    assert (own, lent) == (4, 9)


def test_unread_prompt_is_bounded_with_a_share_kept_for_the_top() -> None:
    """Two seconds of the measured rate may be outstanding, less for classes below the top."""
    options = wide(max_prefill_tokens=100, capacity_tokens=10_000)
    driver = Driver(options)
    driver.gate.precheck("v", "vip", driver.now, half)
    driver.admit(priority_class="batch", prompt_tokens=60)
    queued = driver.queue(priority_class="batch", prompt_tokens=30)
    driver.admit("v", priority_class="vip", prompt_tokens=30)
    driver.progress(1, 1)
    assert driver.pass_s(0.1) == [queued.ticket]


def test_prefill_rate_is_measured_over_whole_seconds_and_bounds_what_is_unread() -> None:
    """A counter that jumps by whole prompts does not look fast; one that restarted says nothing."""
    driver = Driver(wide(capacity_tokens=10**6))
    for elapsed_s, counter in ((0.0, 0), (0.5, 9000), (0.5, 10_000), (0.1, 19_000), (0.9, 20_000)):
        driver.now += elapsed_s
        driver.read(0.0, prompt_tokens=counter)
    assert driver.instance.prefill.rate == pytest.approx(10_000)
    driver.now += 1.0
    driver.read(0.0, prompt_tokens=10)
    driver.now += 1.0
    driver.read(0.0, prompt_tokens=None)
    driver.now += 1.0
    driver.read(0.0, prompt_tokens=20)
    assert driver.instance.prefill.rate == pytest.approx(10_000, rel=0.02)
    driver.admit(prompt_tokens=15_000)
    driver.queue(prompt_tokens=6000)
    driver.progress(1, 1)
    assert driver.pass_s(0.1) == [2]


def test_prefill_bound_that_came_from_demand_gives_way_to_an_engine_without_a_queue() -> None:
    """Light traffic shows a low rate, not believed; while the engine queues nothing, the bound grows."""
    driver = Driver(wide(capacity_tokens=10**6))
    for counter in (0, 100):
        driver.read(0.0, prompt_tokens=counter, waiting=0)
        driver.now += 1.0
    driver.admit(prompt_tokens=4000)
    driver.admit(prompt_tokens=4000)
    driver.queue(prompt_tokens=4000)
    started: list[int] = []
    for _ in range(5):
        driver.now += 0.1
        driver.pass_s(0.0)
        started += driver.read(0.0, prompt_tokens=100, waiting=0, running=1)
    assert started == [3]
