"""What goes into the simulated engine and what comes out: frozen values.

Law of this file: options that exist describe an engine that can work; figures carry their units.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Size and speed of a simulated engine.

    The names of the bounds follow vLLM's own options (`--num-gpu-blocks-override`, `--block-size`,
    `--max-num-seqs`, `--max-num-batched-tokens`, `--max-model-len`). As there, one block is never handed
    out. The speeds are of the order of an 8B model on one GPU; divide them all by the same number to make
    the world run faster.

    Raises:
        ValueError: a figure is out of range, or the longest request would not fit into the cache.
    """

    num_blocks: int = 1024
    block_tokens: int = 16
    max_sequences: int = 64
    max_batched_tokens: int = 2048
    max_model_tokens: int = 2048
    step_s: float = 0.015
    prefill_s_per_token: float = 0.0001
    decode_s_per_sequence: float = 0.00005

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name.startswith(("prefill", "decode")) else 1e-9
            if not least <= value < float("inf"):
                raise ValueError(f"{field.name} is {value!r}, expected a finite figure above zero.")
        if self.usable_tokens < self.max_model_tokens:
            raise ValueError(
                f"max_model_tokens is {self.max_model_tokens}, the cache holds {self.usable_tokens}: "
                "raise num_blocks or lower max_model_tokens."
            )

    @property
    def usable_tokens(self) -> int:
        """Tokens that fit into the blocks that are handed out."""
        return (self.num_blocks - 1) * self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one scheduler step did; its tokens exist from `ends_at_s` on."""

    ends_at_s: float
    advanced: list[Hashable]
    """Requests that got one more token, in the order of admission."""
    finished: list[Hashable]
    """Requests whose last token this was; they are among `advanced`, and the engine has forgotten them."""
    preempted: list[Hashable]
    """Requests that lost their blocks and will be computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's gauges and running totals at one moment."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    finished_requests: int
    cancelled_requests: int
