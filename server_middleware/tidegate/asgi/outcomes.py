"""How a wait may end otherwise than by the gate's answer.

Law of this file: names only.
"""

from __future__ import annotations


class GateFault(Exception):
    """The gate itself raised; what happens to the request is the fault policy's decision.

    Args:
        where: the operation that failed.
        is_recorded: the one fault behind it has been counted already (it failed several waiters).
    """

    def __init__(self, where: str, *, is_recorded: bool = False) -> None:
        super().__init__(where)
        self.is_recorded = is_recorded


class LetPass(Exception):
    """The mode was switched away from `enforce`: whoever waits goes to the app at once."""
