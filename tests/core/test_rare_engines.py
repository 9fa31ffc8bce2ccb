"""Rare ways through the books of an engine, and between engines: each leads where it should."""

from __future__ import annotations

import pytest

from tests.core.driver import Driver, half, wide
from tests.core.leases import lease, ledger_of
from tidegate.core.dispatch import BETWEEN_PROMOTIONS
from tidegate.core.instance import Instance
from tidegate.core.ledger import Ledger
from tidegate.core.occupancy import Demand
from tidegate.core.options import ClassOptions, GateOptions, KvOptions, SignalOptions
from tidegate.core.prompt_counter import PromptCounter
from tidegate.core.prompts import MOST, PromptSizes
from tidegate.core.reading import Reading
from tidegate.core.signal import Signal, State


def test_gauge_that_is_missing_does_not_freeze() -> None:
    """An engine without a level has none that could stand still."""
    signal = Signal(SignalOptions(stale_after_s=100.0, blind_after_s=100.0))
    signal.take(Reading(kv_usage=None, running=0), 0.0, 0.0)
    assert signal.state(50.0) is State.FRESH


def test_prompt_denser_than_possible_is_taken_for_the_densest() -> None:
    """Tokens per byte have bounds."""
    sizes = PromptSizes(3.0)
    sizes.learn("t", "m", 100, 0, int(100 * MOST))
    assert sizes.estimate("t", "m", 100, 0) >= 100 * MOST


def test_sums_of_a_ledger_that_must_be_made_anew() -> None:
    """After many have moved nothing is added to a sum that does not hold."""
    ledger = ledger_of([(100, 50, 1), (200, 70, 1)])
    ledger.changed()
    ledger.add(lease(10, 30, 5))
    ledger.refresh(ledger.leases[0])
    ledger.remove(1)
    assert ledger.held_tokens() == 130.0
    ledger.changed()
    assert ledger.surely_exceeds(Demand(100.0, 1.0, 1), 200.0)
    ledger.drain(ledger.leases[10])
    ledger.refresh(ledger.leases[10])
    assert ledger.held_tokens() == 100.0
    unread = Ledger()
    cold = lease(1, 30, 5)
    cold.first_token_at = None
    unread.add(cold)
    unread.restate(cold, 50.0)
    assert unread.unread_prompt == 50.0
    unread.add(lease(2, 30, 5))
    unread.remove(1)
    assert unread.unread_prompt == 30.0


def _routed() -> Driver:
    """Two engines, and three classes that all may use all of them."""
    classes = tuple(ClassOptions(name=name, starvation_s=5.0) for name in ("vip", "standard", "batch"))
    kv = KvOptions(capacity_tokens=1000, high_watermark=1.0, margin=0.0, margin_min=0.0, block_tokens=1)
    d = Driver(GateOptions(kv=kv, classes=classes))
    readings = [Reading(kv_usage=0.0, running=0, instance=name) for name in ("e1", "e2")]
    d.step = d.gate.observe(readings, d.now, half)
    return d


def test_head_of_a_full_engine_holds_up_nobody_of_another() -> None:
    """Where the shell routes, each engine has a queue of its own."""
    d = _routed()
    d.admit(prompt_tokens=800, instance="e1")
    head = d.queue(prompt_tokens=300, instance="e1")
    d.admit(priority_class="batch", prompt_tokens=500, instance="e2")
    sleeper = d.queue(priority_class="vip", prompt_tokens=600, instance="e2")
    d.step = d.gate.observe([Reading(kv_usage=0.8, asleep=True, instance="e1")], d.now, half)
    assert [refusal.ticket for refusal in d.step.refusals] == [head.ticket]
    assert sleeper.ticket in d.gate._books.queue.waiters, "its engine does not sleep"


def test_head_that_waits_for_a_sequence_is_not_passed() -> None:
    """Only one that waits for room in the cache may be, and only by one that will be out of its way."""
    d = _routed()
    readings = [Reading(kv_usage=0.1, running=2, max_sequences=3, instance=name) for name in ("e1", "e2")]
    d.step = d.gate.observe(readings, d.now, half)
    running = [d.admit(prompt_tokens=100, sequences=2, instance=name).ticket for name in ("e1", "e2")]
    head = d.queue(prompt_tokens=10, sequences=2)
    d.queue(priority_class="batch", prompt_tokens=10)
    assert d.release(running[0])[0] == head.ticket


def test_head_is_not_passed_on_an_engine_of_unknown_size() -> None:
    """There is no telling whether the passer would be out of its way."""
    d = Driver(GateOptions(kv=KvOptions(max_prefill_tokens=500)))
    readings = [
        Reading(kv_usage=0.1, running=0, capacity_tokens=1000, instance="e1"),
        Reading(kv_usage=0.1, running=0, instance="e2"),
    ]
    d.step = d.gate.observe(readings, d.now, half)
    d.progress(d.admit(prompt_tokens=700, instance="e1").ticket, 1)
    d.admit(prompt_tokens=100, instance="e2")
    d.queue(prompt_tokens=450)  # the one is too full for it, the other has too much to read
    d.queue(priority_class="batch", prompt_tokens=250)


def test_who_would_starve_an_overdue_head_does_not_pass_another_either() -> None:
    """It fits, and is out of the way of the head before it, but not of the one that has waited too long."""
    d = Driver(wide())
    d.read(0.0)
    d.admit("t", "vip", prompt_tokens=500, max_output_tokens=1)
    overdue = d.queue("t", "batch", prompt_tokens=600, max_output_tokens=1)
    d.now += 31.0
    d.read(0.5)
    books = d.gate._books
    while books.dispatcher.since_served(books.queue.by_name["batch"]) < 2 * BETWEEN_PROMOTIONS:
        d.release(d.admit("t", "vip", prompt_tokens=10, max_output_tokens=1).ticket)
    head = d.queue("t", "vip", prompt_tokens=700, max_output_tokens=1)
    d.now += 0.1
    small = d.queue("t", "vip", prompt_tokens=100, max_output_tokens=1)
    d.pass_s(0.1)
    assert {overdue.ticket, head.ticket, small.ticket} <= set(books.queue.waiters)


def test_next_to_nothing_unread_counts_by_half() -> None:
    """Of prompts that may or may not have been read, with text or without."""
    counter, ledger = PromptCounter(), Ledger()
    assert counter.take(Reading(kv_usage=0.0, prompt_tokens=0.0, running=0), ledger, 0.0) is None
    read, text, tokens = lease(1, 9, 9, ascii_bytes=1000), lease(2, 9, 9, ascii_bytes=50), lease(3, 20, 9)
    for item in (read, text, tokens):
        item.first_token_at = 0.5 if item is read else None
        ledger.add(item)
        counter.started(item)
    counted = counter.take(Reading(kv_usage=0.0, prompt_tokens=500.0, running=3), ledger, 1.0)
    assert counted is not None
    assert counted.tokens == 500.0 - 10.0
    assert counted.texts == {"": (1025.0, 0.0)}


def test_tenant_with_prompts_of_its_own_keeps_its_share() -> None:
    """What all prompts of a model held restates only the shares of those it stands in for."""
    instance, sizes = Instance("default", wide()), PromptSizes(4.0)
    sizes.learn("known", "", 400, 0, 100)
    instance.calibration._shares.update(known=0.5, stranger=0.5)
    instance.learn_prompts(Reading(kv_usage=0.0, prompt_tokens=0.0, running=0), sizes, 0.0)
    instance.start(lease(1, 9, 9, ascii_bytes=4000), 0.0)
    instance.learn_prompts(Reading(kv_usage=0.0, prompt_tokens=2000.0, running=1), sizes, 1.0)
    assert instance.calibration.share("known") == 0.5
    assert instance.calibration.share("stranger") < 0.5


def test_expected_length_of_the_answer_shortens_the_wait_of_who_needs_it_whole() -> None:
    """At 0.1 s per token 90 tokens take nine seconds."""
    d = Driver(wide())
    d.read(0.0)
    ticket = d.admit(prompt_tokens=800).ticket
    for tokens in (1, 2, 3):
        d.now += 0.1
        d.progress(ticket, tokens)
    waits = d.queue(deadline_at=d.now + 12.0, prompt_tokens=400)
    assert waits.latest_start_at == pytest.approx(d.now + 3.0)
    ticket = d.queue(deadline_at=d.now + 12.0, prompt_tokens=400, generates=False).ticket
    assert d.gate._books.queue.waiters[ticket].latest_start_at == pytest.approx(d.now + 12.0)


def test_lease_whose_engine_has_finished_is_left_alone() -> None:
    """It holds nothing any more, and nothing is inferred of it."""
    d = Driver(wide())
    d.read(0.0)
    ticket = d.admit(max_output_tokens=10).ticket
    d.progress(ticket, 1)
    d.gate.sending_blocked(ticket, True, d.now)
    d.pass_s(60.0)
    drained = d.instance.ledger.leases[ticket]
    assert drained.is_drained
    d.gate.sending_blocked(ticket, False, d.now)
    d.pass_s(60.0)
    assert (drained.seen, d.instance.ledger.held_tokens()) == (1.0, 0.0)


def test_prompt_that_is_being_read_has_generated_nothing() -> None:
    """Of an answer in one piece, by the speed at which the engine reads; others generate meanwhile."""
    d = Driver(wide(capacity_tokens=100_000))
    d.read(0.0, prompt_tokens=0, generation_tokens=0)
    first = d.admit(prompt_tokens=10).ticket
    d.progress(first, 1)
    d.now += 1.0
    d.progress(first, 11)
    d.read(0.01, prompt_tokens=5000, generation_tokens=10)
    assert d.instance.prefill.rate > 0
    ticket = d.admit(prompt_tokens=20_000, streams=False).ticket
    lease_of = d.instance.ledger.leases[ticket]
    assert lease_of.lag_tokens == pytest.approx(20_000 / d.instance.prefill.rate / 0.1)
    d.pass_s(1.0)
    assert (lease_of.seen, lease_of.first_token_at) == (0.0, None)
    d.pass_s(10.0)
    assert lease_of.seen > 0
