"""What a request has used, and what that teaches.

Law of this file: what was not reported keeps its estimate; only a completed answer teaches anything.
"""

from __future__ import annotations

from tidegate.core.decisions import COMPLETED, Settlement
from tidegate.core.ledger import Lease

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # of the virtual token counter


def virtual_tokens(prompt: float, output: float) -> float:
    """Tokens by weight, as the turns of tenants count them."""
    return INPUT_WEIGHT * prompt + OUTPUT_WEIGHT * output


def used_tokens(lease: Lease, settlement: Settlement) -> tuple[float, float]:
    """Prompt and output tokens of all sequences."""
    read, made = settlement.prompt_tokens, settlement.output_tokens
    prompt = lease.ask.prompt_tokens if read is None else float(read)
    if made is not None:
        return prompt, float(made)
    if lease.seen > 0 or settlement.ending is not COMPLETED:
        return prompt, lease.seen
    return prompt, lease.predicted * lease.ask.sequences if lease.ask.generates else 0.0


def taught_length(lease: Lease, settlement: Settlement, output: float) -> float | None:
    """Tokens per sequence of a completed answer, if anything was seen of it."""
    if settlement.ending is not COMPLETED:
        return None
    if settlement.output_tokens is None and lease.seen <= 0:
        return None
    return output / lease.ask.sequences
