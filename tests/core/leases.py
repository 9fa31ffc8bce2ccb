"""Leases and ledgers made by hand."""

from __future__ import annotations

from tidegate.core.decisions import Ask
from tidegate.core.ledger import Lease, Ledger
from tidegate.core.lengths import LengthModel


def lease(ticket: int, prompt: float, left: float, sequences: int = 1, **ask: int) -> Lease:
    """A lease past its first token."""
    made = Lease(
        ask=Ask(
            ticket=ticket,
            tenant="t",
            priority_class="c",
            prompt_tokens=prompt,
            sequences=sequences,
            **ask,  # type: ignore[arg-type]
        ),
        instance="default",
        kinds=LengthModel.kinds("m", None),
        quantile=0.5,
        started_at=0.0,
        waited_s=0.0,
        prompt=prompt,
        predicted=left,
        share=1.0,
        lag_tokens=0.0,
        sequences=sequences,
        first_token_at=0.0,
    )
    made.refresh()
    return made


def ledger_of(rows: list[tuple[int, int, int]]) -> Ledger:
    """A ledger with these (prompt, left, sequences)."""
    ledger = Ledger()
    for ticket, (prompt, left, sequences) in enumerate(rows):
        ledger.add(lease(ticket, prompt, left, sequences))
    return ledger
