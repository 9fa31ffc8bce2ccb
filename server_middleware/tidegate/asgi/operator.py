"""What an operator changes while the server runs, in this worker and in the others.

Law of this file: it passes orders on and says whom they have reached; what they do is the runtime's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tidegate.console.control import MODES
from tidegate.orders import Orders
from tidegate.settings import Mode


class Operator:
    """Takes the orders of one runtime.

    Args:
        orders: those that the workers of the server share.
        mode: the mode in force.
        set_mode: called with the mode to be switched to, and why.
    """

    def __init__(
        self, orders: Orders, mode: Callable[[], Mode], set_mode: Callable[[Mode, str], None]
    ) -> None:
        self._orders = orders
        self._mode = mode
        self._set_mode = set_mode

    def switch(self, mode: str, peer: str) -> str:
        """Switch the mode in every worker; what to answer whoever asked for it from that address."""
        self.follow()
        self._set_mode(cast("Mode", mode), f"by the operator at {peer}")
        return f"mode is {mode}{self._orders.reach(was_posted=self._orders.post(by=peer, mode=mode))}"

    def follow(self) -> None:
        """Do what another worker was told, now or before this one began; called once a second."""
        order = self._orders.news()
        if order is not None and order.mode in MODES and order.mode != self._mode():
            self._set_mode(cast("Mode", order.mode), f"by the operator at {order.by}, through another worker")
