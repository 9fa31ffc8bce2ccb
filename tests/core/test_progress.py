"""How far a running answer has come, and what that and its end teach."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.core.driver import Driver, wide
from tidegate.core.decisions import Ending


def test_slow_reader_strands_nothing_but_only_by_the_declared_maximum() -> None:
    """Our own blocked send, and the time a full answer takes: then the engine must be done."""
    driver = Driver()
    ticket = driver.admit().ticket
    driver.progress(ticket, 1)
    driver.gate.sending_blocked(ticket, True, driver.now)
    driver.pass_s(1.0)
    assert driver.instance.ledger.sequences == 1
    driver.pass_s(1.0)
    assert driver.instance.ledger.sequences == 0
    driver.gate.sending_blocked(ticket, False, driver.now)
    driver.release(ticket)
    assert driver.gate.statistics(driver.now).running == 0


@pytest.mark.parametrize(
    ("kv", "declared", "after_s"),
    [
        ({}, None, 20.0),  # 1,000 tokens of cache at 50 tokens a second
        ({}, 10_000, 20.0),
        ({"max_model_tokens": 200}, None, 4.0),
        ({"max_model_tokens": 200, "capacity_tokens": None}, 10_000, 4.0),
        ({"capacity_tokens": None}, 10_000, 200.0),
        ({"capacity_tokens": None}, None, math.inf),
    ],
)
def test_a_slow_reader_of_an_endless_answer_strands_nothing_either(
    kv: dict[str, Any], declared: int | None, after_s: float
) -> None:
    """No answer is longer than the context or the cache; where neither is known, nothing is certain."""
    driver = Driver(wide(**kv))
    ticket = driver.admit(max_output_tokens=declared).ticket
    driver.progress(ticket, 1)
    driver.gate.sending_blocked(ticket, True, driver.now)
    driver.pass_s(min(0.95 * after_s, 1e5))
    assert driver.instance.ledger.sequences == 1
    driver.pass_s(min(0.1 * after_s, 1e5))
    assert driver.instance.ledger.sequences == (after_s == math.inf)


def test_a_slow_reader_of_what_is_not_generated_strands_nothing() -> None:
    """Embeddings are computed before they are sent: whoever does not fetch them holds nothing."""
    driver = Driver()
    slow = [driver.admit(generates=False, prompt_tokens=300).ticket for _ in range(3)]
    waiting = driver.queue(prompt_tokens=300)
    assert driver.pass_s(30.0) == []
    for ticket in slow:
        driver.gate.sending_blocked(ticket, True, driver.now)
    assert driver.pass_s(0.2) == [waiting.ticket]
    assert driver.instance.ledger.sequences == 1
    assert driver.instance.ledger.unread_prompt == 300
    for ticket in slow:
        driver.release(ticket)
    assert driver.gate.statistics(driver.now).running == 1


def test_whole_answers_are_carried_forward_by_the_engines_pace() -> None:
    """An answer in one piece shows nothing; the ledger still moves on."""
    driver = Driver()
    driver.admit(streams=False, max_output_tokens=100)
    lease = driver.instance.ledger.leases[1]
    driver.pass_s(1.0)
    assert lease.seen == pytest.approx(50 / 1.1)
    driver.pass_s(100.0)
    assert lease.seen == 99, "one that shows nothing has not ended before its release"
    assert lease.left == 1


def test_progress_that_outlives_the_prediction_grows_what_is_left() -> None:
    """It never counts as zero."""
    driver = Driver(wide(capacity_tokens=100_000))
    driver.admit(max_output_tokens=None)
    lease = driver.instance.ledger.leases[1]
    driver.progress(1, 5000)
    assert lease.left > 30
    assert lease.seen == 5000
    driver.progress(1, 10)
    assert lease.seen == 5000
    driver.progress(99, 10)


def test_estimates_learn_from_reported_usage() -> None:
    """What a release reports, the next estimate knows."""
    driver = Driver(wide(capacity_tokens=10**6))
    before = driver.gate.estimate_prompt_tokens("t", "m", 3000, 0)
    for _ in range(30):
        ticket = driver.admit(prompt_tokens=1000, model="m", ascii_bytes=3000).ticket
        driver.release(ticket, prompt_tokens=1500, output_tokens=10)
    assert before == pytest.approx(1000)
    assert driver.gate.estimate_prompt_tokens("t", "m", 3000, 0) > 1400


def test_failures_and_departures_teach_no_lengths() -> None:
    """A wave of errors does not make answers look short, nor the server fast."""
    driver = Driver(wide(capacity_tokens=10**6))
    for ending in (Ending.FAILED, Ending.ABANDONED):
        for _ in range(60):
            driver.release(driver.admit().ticket, ending, output_tokens=1)
    assert not driver.gate._books.lengths.is_known
    assert not driver.gate._books.rate.is_timed


def test_lease_whose_engine_has_finished_is_left_alone() -> None:
    """It holds nothing any more, and nothing is inferred of it."""
    driver = Driver(wide())
    driver.read(0.0)
    ticket = driver.admit(max_output_tokens=10).ticket
    driver.progress(ticket, 1)
    driver.gate.sending_blocked(ticket, True, driver.now)
    driver.pass_s(60.0)
    drained = driver.instance.ledger.leases[ticket]
    assert drained.is_drained
    driver.gate.sending_blocked(ticket, False, driver.now)
    driver.pass_s(60.0)
    assert (drained.seen, driver.instance.ledger.held_tokens()) == (1.0, 0.0)


def test_prompt_that_is_being_read_has_generated_nothing() -> None:
    """Of an answer in one piece, by the speed at which the engine reads; others generate meanwhile."""
    driver = Driver(wide(capacity_tokens=100_000))
    driver.read(0.0, prompt_tokens=0, generation_tokens=0)
    first = driver.admit(prompt_tokens=10).ticket
    driver.progress(first, 1)
    driver.now += 1.0
    driver.progress(first, 11)
    driver.read(0.01, prompt_tokens=5000, generation_tokens=10)
    assert driver.instance.prefill.rate > 0
    ticket = driver.admit(prompt_tokens=20_000, streams=False).ticket
    lease_of = driver.instance.ledger.leases[ticket]
    assert lease_of.lag_tokens == pytest.approx(20_000 / driver.instance.prefill.rate / 0.1)
    driver.pass_s(1.0)
    assert (lease_of.seen, lease_of.first_token_at) == (0.0, None)
    driver.pass_s(10.0)
    assert lease_of.seen > 0
