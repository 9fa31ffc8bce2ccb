"""Predictions of answer lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tidegate.core.lengths import ENOUGH, MAX_KINDS, WINDOW, Kinds, LengthModel

KINDS = LengthModel.kinds("model", 2048)


@dataclass
class Answer:
    """An answer under way."""

    seen: float = 0.0
    asked: int = 1


def taught(lengths: list[float], kinds: Kinds = KINDS) -> LengthModel:
    """A model that saw these answers begin and end, one after the other."""
    model = LengthModel(256)
    for ticket, length in enumerate(lengths):
        model.end(model.begin(kinds, ticket, Answer()), ticket, length)
    return model


@pytest.mark.parametrize(
    ("declared", "quantile", "seen", "expected"),
    [
        (300, 0.5, 0, 300),  # a modest maximum is believed
        (64_000, 0.5, 0, 2048),  # a habit of 64k is not
        (64_000, 0.5, 2048, 2592),  # outlived: grows
        (300, 0.5, 300, 301),  # beyond its maximum: one more
        (0, 0.5, 0, 1),
        (None, 0.0, 0, 1),
        (None, 0.5, 0, 177.4),  # exponential with mean 256
        (None, 0.5, 1000, 1177.4),  # which has no memory
        (None, 1.0, 0, 1001.5),  # cut
    ],
)
def test_prior_before_anything_was_seen(
    declared: int | None, quantile: float, seen: float, expected: float
) -> None:
    """Sensible from the first request, with and without a maximum."""
    kinds = LengthModel.kinds("m", declared)
    assert LengthModel(256).predict(kinds, declared, quantile, seen) == pytest.approx(expected, abs=0.1)


def test_quantiles_of_what_was_seen_conditioned_on_what_is_there() -> None:
    """After `seen` tokens only longer answers count."""
    model = taught([float(length) for length in range(1, 101)])
    assert model.predict(KINDS, 2048, 0.5) == pytest.approx(50, abs=1)
    assert model.predict(KINDS, 2048, 0.5, seen=80) == pytest.approx(90, abs=1)
    assert model.predict(KINDS, 60, 0.9) == 60
    assert model.predict(KINDS, 2048, 0.5, seen=100) >= 125


def test_few_answers_do_not_speak_and_coarser_kinds_do() -> None:
    """Below the bound the prior answers; another maximum's magnitude borrows from the same kind."""
    few = taught([10.0] * (ENOUGH - 1))
    assert few.predict(KINDS, 2048, 0.5) == 2048
    model = taught([10.0] * ENOUGH)
    assert model.predict(KINDS, 2048, 0.5) == 10
    assert model.predict(LengthModel.kinds("model", 100), 100, 0.5) == 10
    assert model.predict(LengthModel.kinds("other", 2048), 2048, 0.5) == 2048


def test_running_answers_count_as_at_least_so_long() -> None:
    """The short answers of a burst, which end first, do not stand for all of it (Kaplan-Meier)."""
    model = LengthModel(256)
    books = [model.begin(KINDS, ticket, Answer(seen=100.0)) for ticket in range(100)]
    for ticket in range(50):
        model.end(books[ticket], ticket, 50.0)
    for ticket in range(50, 100):
        model.begin(KINDS, 1000 + ticket, Answer(seen=100.0))
    assert model.predict(KINDS, 2048, 0.2) == 50
    assert model.predict(KINDS, 2048, 0.6) == 2048, "half of them are not short"


def test_estimate_under_censoring_is_unbiased() -> None:
    """Under a burst of a bimodal mix the share of long answers is right before any of them has ended."""
    rng = random.Random(1)
    model = LengthModel(256)
    totals = [60.0 if rng.random() < 0.7 else 1500.0 for _ in range(600)]
    answers = [Answer() for _ in totals]
    for ticket, answer in enumerate(answers):
        books = model.begin(KINDS, ticket, answer)
        answer.seen = min(totals[ticket], 200.0)
        if totals[ticket] <= 200:
            model.end(books, ticket, totals[ticket])
    predictions = [model.predict(KINDS, 2048, step / 100 + 0.005) for step in range(100)]
    assert sum(prediction > 100 for prediction in predictions) == pytest.approx(30, abs=4)


def test_answers_cut_at_their_maximum_teach_that_the_maximum_is_used() -> None:
    """A load of answers with `ignore_eos` is predicted at its declared maximum, whatever that is."""
    model = LengthModel(256)
    for ticket in range(100):
        kinds = LengthModel.kinds("model", 300 + ticket)
        model.end(model.begin(kinds, ticket, Answer()), ticket, 300.0 + ticket, is_cut=True)
    for declared in (260, 350, 511):
        assert model.predict(LengthModel.kinds("model", declared), declared, 0.1) == declared


def test_old_answers_are_forgotten() -> None:
    """After a change of habits the window holds only the new ones."""
    model = taught([1000.0] * WINDOW + [10.0] * WINDOW)
    assert model.predict(KINDS, 2048, 0.99) == 10
    cut = LengthModel(256)
    for ticket in range(2 * WINDOW):
        books = cut.begin(KINDS, ticket, Answer())
        cut.end(books, ticket, 2048.0 if ticket < WINDOW else 10.0, is_cut=ticket < WINDOW)
    assert cut.predict(KINDS, 2048, 0.99) == 10


def test_what_ended_without_telling_teaches_nothing() -> None:
    """Failures and callers that left are neither short nor long answers."""
    model = taught([100.0] * 50)
    for ticket in range(100, 200):
        model.end(model.begin(KINDS, ticket, Answer()), ticket, None)
    assert model.predict(KINDS, 2048, 0.01) == 100


def test_kinds_remembered_are_bounded_and_trust_needs_samples() -> None:
    """Callers cannot grow the memory by naming new kinds."""
    model = LengthModel(256)
    assert not model.is_known
    for ticket in range(MAX_KINDS + 10):
        kinds = LengthModel.kinds(ticket, None)
        model.end(model.begin(kinds, ticket, Answer()), ticket, 5.0)
    assert len(model._kinds) == MAX_KINDS
    assert model.is_known


def test_a_kind_parts_from_its_only_finer_one_without_a_trace() -> None:
    """Samples shared while all answers are of one magnitude end as two, which then know what each should."""
    model = taught([10.0] * ENOUGH)
    under_way = model.begin(KINDS, 1000, Answer())
    other = LengthModel.kinds("model", 100)
    for ticket in range(ENOUGH):
        model.end(model.begin(other, ticket, Answer()), ticket, 20.0)
    model.end(under_way, 1000, 30.0)  # begun before they parted: written down in both
    assert [model.predict(KINDS, 2048, quantile) for quantile in (0.5, 0.99)] == [10.0, 30.0]
    assert [model.predict(other, 100, quantile) for quantile in (0.01, 0.99)] == [20.0, 20.0]
    unseen = LengthModel.kinds("model", 9)
    assert [model.predict(unseen, 500, quantile) for quantile in (0.2, 0.7, 0.99)] == [10.0, 20.0, 30.0]


def test_weights_are_those_of_the_textbook() -> None:
    """Completed at 10 and 30, still running at 20: the latter's third goes to the longer one (Efron)."""
    model = LengthModel(256)
    books = [model.begin(KINDS, ticket, Answer(seen=20.0)) for ticket in range(3 * ENOUGH)]
    for ticket in range(2 * ENOUGH):
        model.end(books[ticket], ticket, 10.0 if ticket % 2 else 30.0)
    below = [step / 100 + 0.005 for step in range(100)]
    predictions = [model.predict(KINDS, 2048, quantile) for quantile in below]
    assert predictions.count(10.0) == pytest.approx(33, abs=1)
    assert predictions.count(30.0) == pytest.approx(67, abs=1)
