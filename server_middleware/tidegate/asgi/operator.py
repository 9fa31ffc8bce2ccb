"""What an operator changes while the server runs, in this worker and in the others: mode and tenants.

Law of this file: an order is done here, passed on, and its answer says whom it has reached. Settings are
read anew as a whole or not at all: where anything in them is wrong, nothing changes. Of right ones the
tenants take effect; the answer names what else has changed and waits for a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, cast

from tidegate.console.control import MODES
from tidegate.orders import Orders
from tidegate.settings import Mode, Settings

logger = logging.getLogger("tidegate")

LIVE = ("tenants", "default_tenant")
"""The settings that take effect without a restart."""
GIVEN_IN_CODE = "The settings were given by the program, so there is nothing to read anew: restart it."
_OTHERS = [name for name in Settings.model_fields if name not in (*LIVE, "mode")]  # the mode has its switch


class Gate(Protocol):
    """What takes the orders."""

    settings: Settings
    mode: Mode

    def set_mode(self, mode: Mode, why: str) -> None:
        """Switch."""

    def renew(self, settings: Settings) -> None:
        """Serve other tenants."""


class Operator:
    """Takes the orders for one gate.

    Args:
        gate: that obeys them.
        orders: those that the workers of the server share.
        load: reads the settings once more; `None` where they were given by the program.
    """

    def __init__(self, gate: Gate, orders: Orders, load: Callable[[], Settings] | None) -> None:
        self._gate = gate
        self._orders = orders
        self._load = load
        self._reloads: int | None = None  # followed so far; `None`: this worker has just read its settings

    def switch(self, mode: str, peer: str) -> str:
        """Switch the mode in every worker; what to answer whoever asked for it from that address."""
        self.follow()
        self._gate.set_mode(cast("Mode", mode), f"by the operator at {peer}")
        return f"mode is {mode}{self._orders.reach(was_posted=self._orders.post(by=peer, mode=mode))}"

    def reload(self, peer: str) -> tuple[int, str]:
        """Read the settings anew in every worker; the status and the text of the answer."""
        self.follow()
        if self._load is None:
            return 409, GIVEN_IN_CODE
        try:
            waiting = self._reread(self._load, f"by the operator at {peer}")
        except ValueError as error:
            _say_why_not(error)
            return 400, f"nothing has changed: {error}"
        reach = self._orders.reach(was_posted=self._orders.post(by=peer, is_reload=True))
        self._reloads = (self._reloads or 0) + 1
        rest = f"; a restart is needed for {', '.join(waiting)}" if waiting else ""
        return 200, f"tenants are read anew{reach}{rest}"

    def follow(self) -> None:
        """Do what another worker was told, now or before this one began; called once a second."""
        order = self._orders.news()
        if order is not None and order.mode in MODES and order.mode != self._gate.mode:
            self._gate.set_mode(
                cast("Mode", order.mode), f"by the operator at {order.by}, through another worker"
            )
        if order is not None and self._load is not None and order.reloads > (self._reloads or 0):
            if self._reloads is not None:
                self._reread_as_told(self._load, order.by)
            self._reloads = order.reloads
        self._reloads = self._reloads or 0

    def _reread_as_told(self, load: Callable[[], Settings], by: str) -> None:
        try:
            self._reread(load, f"by the operator at {by}, through another worker")
        except ValueError as error:
            _say_why_not(error)

    def _reread(self, load: Callable[[], Settings], why: str) -> list[str]:
        """Take the tenants over; the names of other settings that have changed.

        Raises:
            ValueError: something is wrong in the settings, or needs one that waits for a restart.
        """
        read, now = load(), self._gate.settings
        settings = now.model_copy(update={name: getattr(read, name) for name in LIVE})
        settings.check()
        self._gate.renew(settings)
        waiting = [name for name in _OTHERS if getattr(read, name) != getattr(now, name)]
        rest = f" A restart is needed for {', '.join(waiting)}." if waiting else ""
        logger.warning("Tidegate: Tenants read anew (%s): %d.%s", why, len(settings.tenants), rest)
        return waiting


def _say_why_not(error: ValueError) -> None:
    logger.error("Tidegate: The settings cannot be read anew, nothing has changed: %s", error)
