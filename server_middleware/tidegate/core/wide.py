"""Requests of many sequences: what one of them takes up at once.

Law of this file: pure. An engine runs as many sequences as its bounds allow, and the others after them. So a
request that is wider than the engine needs no empty one: it counts as what can run of it at once, and where
even that would leave no room for anybody else, as half of the bound in question. What does not generate is
over as soon as it has been read, and keeps one seat however many its prompts are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tidegate.core.decisions import Ask

HALF = 0.5


class Spread(NamedTuple):
    """What a request takes up at once."""

    at_once: int  # sequences in the cache
    seats: int  # of the engine's bound on sequences
    part: float  # of its prompt tokens


class Bounds(NamedTuple):
    """Of one engine, for one class; `None` where a bound is unknown."""

    sequences: float | None
    capacity_tokens: float | None
    context_tokens: float | None
    half_block: float  # tokens that a sequence keeps beside what it holds


def fitting(ask: Ask, prompt: float, context_tokens: float | None) -> float:
    """Of an estimated prompt, what an engine takes in: beyond its context it refuses, or cuts off."""
    if context_tokens is None or prompt <= context_tokens:
        return prompt
    return min(prompt, context_tokens * ask.sequences)


ONE = Spread(1, 1, 1.0)


def spread(ask: Ask, prompt: float, left: float, bounds: Bounds) -> Spread:
    """Spread a request over an engine.

    Args:
        prompt: tokens charged for all of its prompts.
        left: tokens that each sequence will generate.
    """
    asked, most = ask.sequences, bounds.sequences
    at_once = asked if most is None else min(asked, max(1, int(most)))
    seats = asked if most is None else min(asked, max(1, math.ceil(most * HALF)))
    at_once = min(at_once, _in_cache(ask, prompt, left, at_once, bounds))
    part = 1.0 if at_once == asked else max(at_once / asked, _longest(prompt, bounds))
    return Spread(at_once, seats if ask.generates else 1, part)


def _in_cache(ask: Ask, prompt: float, left: float, at_once: int, bounds: Bounds) -> int:
    """How many are in the cache at once. What generates may fill it, and waits until that fits."""
    capacity = bounds.capacity_tokens
    if capacity is None:
        return at_once
    each = prompt / ask.sequences + left + bounds.half_block
    if at_once * each <= (capacity if ask.generates else capacity * HALF):
        return at_once
    return max(1, int(capacity * HALF / each))


def _longest(prompt: float, bounds: Bounds) -> float:
    """The share of one prompt among all, which may be all of it: many answers to one question."""
    most = bounds.context_tokens
    if most is None:
        most = None if bounds.capacity_tokens is None else bounds.capacity_tokens * HALF
    return 1.0 if most is None or prompt <= most else most / prompt
