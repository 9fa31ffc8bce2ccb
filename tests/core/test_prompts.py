"""Prompt sizes by bytes."""

from __future__ import annotations

import random

import pytest

from tidegate.core.prompts import MAX_MODELS, MOST, PromptSizes


@pytest.mark.parametrize(
    ("ascii_bytes", "other_bytes", "expected"),
    [(3000, 0, 1000), (0, 3000, 1500), (300, 300, 250), (0, 0, 1)],
)
def test_prior_by_script(ascii_bytes: int, other_bytes: int, expected: float) -> None:
    """Three ASCII bytes to a token, one and a half tokens to a Chinese character; never nothing."""
    assert PromptSizes(3.0).estimate("t", "m", ascii_bytes, other_bytes) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ascii_density", "other_density"),
    [(1 / 4.2, 0.5), (1 / 2.2, 0.5), (1 / 4.0, 0.25), (1 / 3.5, 0.7)],
    ids=["English", "code", "Chinese with a modern tokenizer", "Chinese with an old one"],
)
def test_learns_a_tenants_mix(ascii_density: float, other_density: float) -> None:
    """After some reports English, code and Chinese are within a quarter, and hardly ever too small."""
    rng = random.Random(2)
    sizes = PromptSizes(3.0)
    ratios = []
    for step in range(300):
        ascii_bytes = rng.randrange(100, 5000)
        other_bytes = 0 if step % 2 else rng.randrange(3000)
        tokens = round((ascii_bytes * ascii_density + other_bytes * other_density) * rng.gauss(1, 0.05))
        if step > 100:
            ratios.append(sizes.estimate("t", "m", ascii_bytes, other_bytes) / tokens)
        sizes.learn("t", "m", ascii_bytes, other_bytes, tokens)
    assert 0.95 < sum(ratios) / len(ratios) < 1.2
    assert sorted(ratios)[len(ratios) // 20] > 0.8


def test_tenants_and_models_learn_apart_and_absurd_reports_are_ignored() -> None:
    """Own reports go before the model's average; one that cannot be about these bytes is dropped."""
    sizes = PromptSizes(3.0)
    for _ in range(50):
        sizes.learn("code", "m", 3000, 0, 1500)
        sizes.learn("prose", "m", 3000, 0, 750)
        sizes.learn("broken", "broken", 3000, 0, 3_000_000)
        sizes.learn("broken", "broken", 3000, 0, 0)
        sizes.learn("broken", "broken", 0, 0, 10)
    assert sizes.estimate("code", "m", 3000, 0) > 1400
    assert sizes.estimate("prose", "m", 3000, 0) < 800
    assert sizes.estimate("code", "other model", 3000, 0) == pytest.approx(1000)
    assert sizes.estimate("broken", "broken", 3000, 0) == pytest.approx(1000)


def test_the_first_report_counts_in_full() -> None:
    """One answer tells more about a tenant's text than the prior does."""
    sizes = PromptSizes(3.0)
    sizes.learn("t", "m", 3000, 0, 2000)
    assert sizes.estimate("t", "m", 3000, 0) == pytest.approx(2000, rel=0.1)


def test_a_stranger_is_taken_for_the_models_average() -> None:
    """Reports of others are worth more than the prior, and each model has its own."""
    sizes = PromptSizes(3.0)
    for _ in range(20):
        sizes.learn("known", "m", 3000, 0, 1500)
    assert sizes.estimate("new", "m", 3000, 0) == pytest.approx(1.05 * 1500)
    assert sizes.estimate("new", "other", 3000, 0) == pytest.approx(1000)


def test_caution_lasts_until_prompts_were_counted() -> None:
    """Where the truth is a few prompts away, two bytes to a token are charged until it is there."""
    sizes = PromptSizes(3.0)
    sizes.is_counted = True
    assert sizes.estimate("t", "m", 3000, 0) == pytest.approx(1500)
    sizes.learn_counted({"m": (30_000, 0)}, 6000)
    assert sizes.estimate("t", "m", 3000, 0) == pytest.approx(1.05 * 642, rel=0.01)


def test_a_counter_that_cannot_be_about_these_bytes_is_held_within_bounds() -> None:
    """Nine bytes to a token and three quarters of one are the ends."""
    sizes = PromptSizes(3.0)
    sizes.learn_counted({"thin": (30_000, 0)}, 1)
    sizes.learn_counted({"thick": (30_000, 0)}, 1e9)
    sizes.learn_counted({"none": (30_000, 0)}, -5)
    assert sizes.estimate("t", "thin", 3000, 0) == pytest.approx(1.05 * 300)
    assert sizes.estimate("t", "thick", 3000, 0) == pytest.approx(1.05 * 4000)
    assert sizes.estimate("t", "none", 3000, 0) == pytest.approx(1000)


def test_memory_is_bounded() -> None:
    """A million tenants leave no more than the bound behind."""
    sizes = PromptSizes(3.0, max_remembered=10)
    for number in range(1000):
        sizes.learn(f"t{number}", "m", 300, 0, 90)
    assert len(sizes._known) == 10
    assert not sizes.is_known("t0", "m")
    for number in range(1000):
        sizes.learn("t", f"m{number}", 300, 0, 90)
    assert len(sizes._averages) <= MAX_MODELS


def test_prompt_denser_than_possible_is_taken_for_the_densest() -> None:
    """Tokens per byte have bounds."""
    sizes = PromptSizes(3.0)
    sizes.learn("t", "m", 100, 0, int(100 * MOST))
    assert sizes.estimate("t", "m", 100, 0) >= 100 * MOST
