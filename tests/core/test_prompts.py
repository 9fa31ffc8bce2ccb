"""Prompt sizes by bytes."""

from __future__ import annotations

import random

import pytest

from tidegate.core.prompts import PromptSizes


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
    """One tenant's reports say nothing of another's; a report that cannot be about these bytes is dropped."""
    sizes = PromptSizes(3.0)
    for _ in range(50):
        sizes.learn("code", "m", 3000, 0, 1500)
        sizes.learn("broken", "m", 3000, 0, 3_000_000)
        sizes.learn("broken", "m", 3000, 0, 0)
        sizes.learn("broken", "m", 0, 0, 10)
    assert sizes.estimate("code", "m", 3000, 0) > 1400
    assert sizes.estimate("code", "other model", 3000, 0) == pytest.approx(1000)
    assert sizes.estimate("broken", "m", 3000, 0) == pytest.approx(1000)


def test_memory_is_bounded() -> None:
    """A million tenants leave no more than the bound behind."""
    sizes = PromptSizes(3.0, max_remembered=10)
    for number in range(1000):
        sizes.learn(f"t{number}", "m", 300, 0, 90)
    assert len(sizes._known) == 10
    assert sizes.estimate("t0", "m", 300, 0) == pytest.approx(100)
