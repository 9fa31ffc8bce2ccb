"""One sample of what an engine says about itself.

Law of this file: a `Reading` that exists is usable. What is out of range is refused in the
constructor with the field, the value and the way out; what is not known is `None`, never zero. The one
way around the constructor, `vouched_reading`, is for a source that has made sure of the same already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


class InvalidReading(ValueError):
    """A probe reported a figure that cannot be true; the sample is dropped, never read as 0 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one engine instance reported at one moment.

    `kv_usage` is the allocated share of the KV cache, 0..1. It is required: an engine without that
    gauge is described by `waiting`, `running` and `kv_usage=None`.
    Counters (`preemptions`, `generation_tokens`, `prompt_tokens`) are the engine's own running totals.

    Raises:
        InvalidReading: a figure is NaN, infinite, negative, or a usage lies above 1.
    """

    kv_usage: float | None
    waiting: int | None = None
    running: int | None = None
    capacity_tokens: int | None = None
    block_tokens: int | None = None
    max_sequences: int | None = None
    max_model_tokens: int | None = None
    preemptions: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    waiting_for_capacity: int | None = None
    asleep: bool = False
    instance: str = "default"

    def __post_init__(self) -> None:
        if self.kv_usage is not None:
            _check("kv_usage", self.kv_usage)
            if self.kv_usage > 1.0:
                hint = " It looks like a percentage: divide by 100." if self.kv_usage <= 100.0 else ""
                raise InvalidReading(f"kv_usage is {self.kv_usage!r}, expected a fraction in 0..1.{hint}")
        for name in FIGURES:
            value = getattr(self, name)
            if value is not None:
                _check(name, value)
        if not self.instance:
            raise InvalidReading("instance is empty, expected a name such as 'default'.")


FIGURES = (
    "waiting",
    "running",
    "capacity_tokens",
    "block_tokens",
    "max_sequences",
    "max_model_tokens",
    "preemptions",
    "generation_tokens",
    "prompt_tokens",
    "waiting_for_capacity",
)
"""Those of a reading besides its level, in the order of its fields."""


def _check(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidReading(f"{name} is {value!r}, expected a number or None for unknown.")
    if not math.isfinite(value) or value < 0:
        raise InvalidReading(
            f"{name} is {value!r}, expected a finite figure of at least 0, or None for unknown."
        )


class _Draft:
    """The same slots, not frozen: stores through a frozen class take ten times as long."""

    __slots__ = Reading.__slots__


def vouched_reading(figures: tuple[Any, ...]) -> Reading:
    """Return a reading of figures that are known to be possible: one for each field, in their order.

    Nothing is checked here: the caller answers for every figure.
    """
    draft: Any = _Draft()
    (
        draft.kv_usage,
        draft.waiting,
        draft.running,
        draft.capacity_tokens,
        draft.block_tokens,
        draft.max_sequences,
        draft.max_model_tokens,
        draft.preemptions,
        draft.generation_tokens,
        draft.prompt_tokens,
        draft.waiting_for_capacity,
        draft.asleep,
        draft.instance,
    ) = figures
    draft.__class__ = Reading
    return draft  # type: ignore[no-any-return]
