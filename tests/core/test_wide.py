"""Requests that are wider than the engine: batches of prompts, many answers, texts beyond the context."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driver import Driver, wide
from tests.core.invariants import brute_force_peak
from tidegate.core.decisions import Ask
from tidegate.core.verdict import Verdict
from tidegate.core.wide import Bounds, Spread, spread


def engine(**kv: Any) -> Driver:
    """An engine of 64 sequences and 100,000 tokens."""
    return Driver(wide(**{"capacity_tokens": 100_000, "max_sequences": 64, "block_tokens": 16, **kv}))


@pytest.mark.parametrize("each", [20, 500], ids=["fits the cache", "exceeds the cache"])
def test_a_batch_of_embeddings_needs_no_empty_engine(each: int) -> None:
    """As many inputs as the API allows start beside the chats, and keep the next chats from nothing."""
    driver = engine(max_model_tokens=8192)
    for _ in range(6):
        driver.admit("chat")
    driver.admit("indexer", generates=False, sequences=2048, prompt_tokens=2048 * each, max_output_tokens=0)
    driver.admit("chat")
    assert driver.instance.ledger.seats == 8
    assert driver.instance.ledger.sequences == 7 + 2048, "so many the engine will count"


def test_batches_of_embeddings_run_side_by_side() -> None:
    """They take turns by what is unread and by what they hold, not by the number of their inputs."""
    driver = engine(max_prefill_tokens=50_000)
    batch = {"generates": False, "sequences": 1000, "prompt_tokens": 20_000, "max_output_tokens": 0}
    driver.admit(**batch)
    driver.admit(**batch)
    driver.queue(**batch)
    assert driver.gate._cycle.blocked_by is Verdict.PREFILL


def test_a_batch_of_completions_waits_for_half_of_the_seats() -> None:
    """It takes that half for as long as it runs; the others keep theirs."""
    driver = engine()
    chats = [driver.admit("chat").ticket for _ in range(33)]
    batch = driver.queue("batch", sequences=200, prompt_tokens=200 * 50)
    assert driver.gate._cycle.blocked_by is Verdict.SEQUENCES
    assert driver.release(chats[0]) == [batch.ticket]
    assert driver.instance.ledger.seats == 64
    waiting = driver.queue("chat")
    assert driver.release(chats[1]) == [waiting.ticket]


def test_what_it_holds_is_what_runs_of_it_at_once() -> None:
    """Never less than that while the first of its answers make way for the others, and never all of it."""
    driver = engine(max_model_tokens=1000)
    batch = driver.admit(sequences=640, prompt_tokens=640 * 100, max_output_tokens=100)
    assert driver.predicted(batch) == 640 * 100
    lease = driver.instance.ledger.leases[batch.ticket]
    at_once = 64 * (100 + 100 + 8)
    assert driver.instance.ledger.peak_tokens() == pytest.approx(at_once, rel=0.01)
    for hundredth in range(1, 100):
        driver.now += 1.0
        driver.progress(batch.ticket, 640 * hundredth)
        assert 64 * 108 <= lease.held <= at_once
        assert lease.held < driver.instance.ledger.peak_tokens() <= at_once * 1.5
        assert driver.instance.ledger.peak_tokens() == pytest.approx(brute_force_peak([lease]))


def test_a_batch_teaches_the_length_of_one_answer() -> None:
    """Whatever ran of it at once; also while it runs."""
    driver = engine(max_model_tokens=1000)
    ask: dict[str, Any] = {"sequences": 640, "prompt_tokens": 640, "max_output_tokens": 500}
    for _ in range(40):
        ticket = driver.admit(**ask).ticket
        driver.progress(ticket, 640 * 30)
        driver.release(ticket, prompt_tokens=640, output_tokens=640 * 60)
    first = driver.admit(**ask)
    assert driver.predicted(first) == 640 * 60
    driver.progress(first.ticket, 640 * 30)
    driver.uniform = lambda: 0.999
    assert driver.predicted(driver.admit(prompt_tokens=10, max_output_tokens=500)) == 60


def test_a_batch_that_exceeds_the_cache_leaves_room_for_others() -> None:
    """It can never fit as a whole, so it counts as half of the cache and starts beside small requests."""
    driver = engine(max_model_tokens=8192)
    driver.admit("chat")
    batch = driver.admit("batch", sequences=30, prompt_tokens=30 * 4000, max_output_tokens=500)
    lease = driver.instance.ledger.leases[batch.ticket]
    assert lease.held + lease.sequences * lease.left == pytest.approx(50_000, rel=0.15)
    driver.admit("chat")


def test_many_answers_to_one_question_hold_the_question_as_a_whole() -> None:
    """It is in the cache once, however few of the answers are under way."""
    driver = engine(max_model_tokens=8192)
    ticket = driver.admit(sequences=256, prompt_tokens=6000, max_output_tokens=10).ticket
    assert driver.instance.ledger.leases[ticket].held == pytest.approx(6000 + 64 * 8)


def test_each_prompt_of_a_batch_is_predicted_by_itself() -> None:
    """All of them together may be longer than the context."""
    driver = engine(max_model_tokens=8192)
    admit = driver.admit(sequences=20, prompt_tokens=20 * 1000, max_output_tokens=50)
    assert driver.predicted(admit) == 20 * 50


def test_a_text_beyond_the_context_needs_no_empty_engine() -> None:
    """The engine will refuse it or cut it off: it never holds more than its context, whatever is read."""
    driver = engine(max_model_tokens=8192)
    for _ in range(20):
        driver.admit("chat")
    ticket = driver.admit("stranger", prompt_tokens=1_000_000, ascii_bytes=3_000_000).ticket
    driver.read(0.05, running=21, waiting=0)
    assert driver.instance.ledger.leases[ticket].prompt == 8192
    assert driver.instance.ledger.unread_prompt == 20 * 10 + 8192
    driver.admit("chat")


def test_without_any_bound_a_batch_takes_half_of_the_blind_concurrency() -> None:
    """Nothing is known of the engine; a batch still waits for no empty one."""
    driver = Driver(wide(capacity_tokens=None))
    most = int(driver.instance.budget.concurrency)
    for _ in range(most // 2):
        driver.admit("chat")
    driver.admit("batch", sequences=10 * most)
    driver.queue("chat")


@pytest.mark.parametrize(
    ("generates", "asked", "prompt", "left", "bounds", "expected"),
    [
        (True, 4, 400.0, 50.0, Bounds(64, 10_000, None, 8.0), Spread(4, 4, 1.0)),
        (True, 40, 400.0, 50.0, Bounds(64, 10_000, None, 8.0), Spread(40, 32, 1.0)),
        (True, 128, 12_800.0, 50.0, Bounds(64, 100_000, 100, 8.0), Spread(64, 32, 0.5)),
        (True, 128, 12_800.0, 50.0, Bounds(None, 100_000, 100, 8.0), Spread(128, 128, 1.0)),
        (True, 10, 9_200.0, 72.0, Bounds(64, 10_000, 1_000, 8.0), Spread(10, 10, 1.0)),
        (True, 10, 9_300.0, 72.0, Bounds(64, 10_000, 930, 8.0), Spread(4, 10, 0.4)),
        (False, 10, 9_200.0, 0.0, Bounds(64, 10_000, 920, 8.0), Spread(5, 1, 0.5)),
        (False, 10, 9_200.0, 0.0, Bounds(64, 10_000, 4_600, 8.0), Spread(5, 1, 0.5)),
        (False, 10, 9_200.0, 0.0, Bounds(64, 10_000, None, 8.0), Spread(5, 1, 5_000 / 9_200)),
        (False, 10, 9_200.0, 0.0, Bounds(64, 100, 920, 8.0), Spread(1, 1, 0.1)),
        (False, 10, 9_200.0, 0.0, Bounds(None, None, None, 8.0), Spread(10, 1, 1.0)),
        (True, 10, 0.0, 50.0, Bounds(1, None, None, 8.0), Spread(1, 1, 1.0)),
    ],
)
def test_the_spread_of_a_request(
    generates: bool, asked: int, prompt: float, left: float, bounds: Bounds, expected: Spread
) -> None:
    """By the bound on sequences, by the cache, and never less than one prompt of the context's size."""
    ask = Ask(
        ticket=1, tenant="t", priority_class="c", prompt_tokens=prompt, sequences=asked, generates=generates
    )
    assert spread(ask, prompt, left, bounds) == pytest.approx(expected)
