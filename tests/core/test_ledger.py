"""The projected peak against a walk through time, and the books that never drift."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.invariants import brute_force_peak
from tests.core.leases import lease, ledger_of
from tidegate.core.ledger import Ledger
from tidegate.core.occupancy import Demand, projected_peak

LEASES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 400), st.integers(1, 4)), min_size=0, max_size=12
)


def walk(demands: list[Demand]) -> float:
    """Occupancy step by step: every sequence grows by one token until it ends."""
    horizon = int(max((demand.left for demand in demands), default=0))
    peak = 0.0
    for step in range(horizon + 1):
        present = [demand for demand in demands if demand.left >= step]
        peak = max(peak, sum(demand.held + demand.sequences * step for demand in present))
    return peak


@given(LEASES)
def test_projected_peak_is_what_a_walk_through_time_finds(rows: list[tuple[int, int, int]]) -> None:
    """The formula sees exactly the fullest moment ahead."""
    demands = [Demand(float(prompt), float(left), sequences) for prompt, left, sequences in rows]
    assert projected_peak(demands) == pytest.approx(walk(demands))


@given(LEASES, st.integers(0, 300), st.integers(1, 400), st.integers(1, 3))
def test_peak_with_a_candidate_equals_the_peak_of_all(
    rows: list[tuple[int, int, int]], held: int, left: int, sequences: int
) -> None:
    """The fast question about one candidate agrees with the formula over everybody."""
    ledger = ledger_of(rows)
    candidate = Demand(float(held), float(left), sequences)
    everyone = [Demand(item.held, item.left, item.sequences) for item in ledger.leases.values()]
    assert ledger.peak_with(candidate) == pytest.approx(projected_peak([*everyone, candidate]))
    assert ledger.peak_beside([candidate]) == pytest.approx(ledger.peak_with(candidate))
    assert ledger.peak_tokens() == pytest.approx(brute_force_peak(ledger.leases.values()))


@settings(max_examples=60)
@given(LEASES, st.integers(1, 300), st.integers(1, 300))
def test_earliest_fit_is_a_moment_at_which_it_fits(
    rows: list[tuple[int, int, int]], held: int, left: int
) -> None:
    """After so many steps the head fits beside what is left; alone it always fits."""
    ledger = ledger_of(rows)
    head = Demand(float(held), float(left), 1)
    limit = max(700.0, held + left)
    steps = ledger.earliest_fit(head, limit)
    remaining = [
        Demand(item.held + item.sequences * steps, item.left - steps, item.sequences)
        for item in ledger.leases.values()
        if item.left > steps
    ]
    assert projected_peak([*remaining, head]) <= limit + 1e-6


def test_a_passer_that_is_gone_in_time_delays_nobody() -> None:
    """Short work slips past a blocked head; long work that would stand in its way does not."""
    ledger = ledger_of([(400, 100, 1), (400, 300, 1)])
    head = Demand(300.0, 50.0, 1)
    steps = ledger.earliest_fit(head, 1000.0)
    assert steps == 100
    assert not ledger.would_delay(head, Demand(10.0, 90.0, 1), steps, 1000.0)
    assert ledger.would_delay(head, Demand(60.0, 400.0, 1), steps, 1000.0)


def test_unread_prompt_and_sequences_follow_the_leases() -> None:
    """Sums kept for speed stay sums."""
    ledger = Ledger()
    for ticket in range(3):
        made = lease(ticket, 100, 50, 2)
        made.first_token_at = None
        ledger.add(made)
    assert (ledger.unread_prompt, ledger.sequences) == (300, 6)
    ledger.mark_first_token(ledger.leases[0], 1.0)
    ledger.mark_first_token(ledger.leases[0], 2.0)
    assert ledger.unread_prompt == 200
    ledger.remove(1)
    assert (ledger.unread_prompt, ledger.sequences) == (100, 4)
    ledger.remove(0)
    ledger.remove(2)
    assert (ledger.unread_prompt, ledger.sequences, ledger.held_tokens(), ledger.peak_tokens()) == (
        0,
        0,
        0,
        0,
    )


def test_drained_lease_holds_nothing_but_stays_to_be_released() -> None:
    """A reader too slow for its stream strands nothing, and its release still finds its lease."""
    ledger = ledger_of([(100, 50, 1), (100, 80, 1)])
    ledger.drain(ledger.leases[0])
    assert ledger.held_tokens() == 100
    assert ledger.remove(0).is_drained
    assert ledger.held_tokens() == 100


def test_lease_always_has_something_left() -> None:
    """An answer that outlived its prediction never counts as finished; embeddings have no answer."""
    made = lease(1, 10, 50)
    made.seen = 500.0
    made.refresh()
    assert (made.held, made.left) == (510, 1)
    prompt_only = lease(2, 10, 50, generates=False)
    assert prompt_only.left == 0


def test_unread_lease_runs_longer_than_the_others() -> None:
    """What the others generate while its prompt is read is part of what is left."""
    made = lease(1, 10, 50)
    made.first_token_at, made.lag_tokens = None, 7.0
    made.refresh()
    assert made.left == 57


def test_risk_grows_with_uncertainty_and_is_nothing_without_it() -> None:
    """Answers certain to use their maximum leave no chance; many short and few long ones do."""
    rows = [(10, 20, 1)] * 30 + [(10, 1000, 1)] * 10
    uncertain = ledger_of(rows)
    assert uncertain.risk() > 0.1
    assert Ledger(deviations=0.0).risk() == 0.0
    unmoved = ledger_of(rows)
    unmoved.deviations = 0.0
    assert unmoved.risk() == 0.0
    certain = Ledger()
    for ticket, (prompt, left, _) in enumerate(rows):
        certain.add(lease(ticket, prompt, left, max_output_tokens=left))
    assert certain.risk() == 0.0
    steady = ledger_of([(700, left, 1) for left in range(1, 1000, 10)])
    assert 0 <= steady.risk() < uncertain.risk()


def test_order_survives_any_sequence_of_changes() -> None:
    """Growth, arrivals and departures in random order leave the same books as a fresh ledger."""
    rng = random.Random(4)
    ledger = Ledger()
    for ticket in range(200):
        ledger.add(lease(ticket, rng.randrange(300), rng.randrange(1, 400)))
        if rng.random() < 0.4:
            ledger.remove(rng.choice(list(ledger.leases)))
        for item in rng.sample(list(ledger.leases.values()), k=min(3, len(ledger.leases))):
            item.seen += rng.randrange(60)
            item.refresh()
            ledger.changed()
        assert ledger.peak_tokens() == pytest.approx(brute_force_peak(ledger.leases.values()))


def move(ledger: Ledger, rng: random.Random, ticket: int) -> None:
    """One change of any kind, told as each is to be told."""
    present = [item for item in ledger.leases.values() if not item.is_drained]
    kind = rng.choice(["add", "add", "grow", "grow", "outlive", "remove", "drain", "restate", "many"])
    if kind == "add" or not present:
        ledger.add(lease(ticket, rng.randrange(300), rng.randrange(1, 400), rng.choice([1, 1, 3])))
        return
    chosen = rng.choice(present)
    if kind == "remove":
        ledger.remove(chosen.ask.ticket)
    elif kind == "drain":
        ledger.drain(chosen)
    elif kind == "restate":
        ledger.restate(chosen, rng.randrange(300))
    elif kind == "many":
        for item in present:
            item.seen += rng.randrange(30)
            item.refresh()
        ledger.changed()
    else:
        chosen.seen += rng.randrange(40)
        chosen.predicted += 100 if kind == "outlive" else 0
        ledger.refresh(chosen)


@settings(max_examples=60)
@given(st.integers(0, 2**16))
def test_quick_answers_agree_with_a_look_at_every_lease(seed: int) -> None:
    """What follows each change at no cost says "surely" only where it is so, and the sums never drift."""
    rng = random.Random(seed)
    ledger = Ledger()
    for ticket in range(60):
        move(ledger, rng, ticket)
        present = [item for item in ledger.leases.values() if not item.is_drained]
        demand = Demand(float(rng.randrange(300)), float(rng.randrange(1, 400)), rng.choice([1, 1, 3]))
        everyone = [Demand(item.held, item.left, item.sequences) for item in present]
        truth = projected_peak([*everyone, demand])
        limit = truth + rng.choice([-500.0, -50.0, -1.0, 1.0, 50.0, 500.0])
        assert not ledger.surely_fits(demand, limit) or truth <= limit
        assert not ledger.surely_exceeds(demand, limit) or truth > limit
        assert ledger.held_tokens() == pytest.approx(sum(item.held for item in present))
        if rng.random() < 0.3:
            assert ledger.peak_with(demand) == pytest.approx(truth)
            assert ledger.peak_tokens() == pytest.approx(brute_force_peak(present))


def test_most_candidates_are_judged_without_a_look_at_every_lease() -> None:
    """Far below the limit and at a full engine the quick answer is an answer."""
    ledger = ledger_of([(100, 50, 1)] * 10)
    small = Demand(10.0, 50.0, 1)
    assert ledger.surely_fits(small, 2000.0)
    assert not ledger.surely_fits(small, 1200.0)
    assert not ledger.surely_exceeds(small, 1200.0), "no moment ahead is known yet"
    assert ledger.peak_with(small) == 1560.0
    ledger.remove(0)
    assert ledger.surely_exceeds(small, 1300.0)


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
