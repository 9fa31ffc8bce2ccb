"""One tenant within one class: its requests in order, and its turn among the tenants.

Law of this file: once a request names an end user, the tenant's end users take turns, and the tenant's own
order is theirs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tidegate.core.line import Line, Waiter
from tidegate.core.tenants import Tenant
from tidegate.core.turns import Turns

if TYPE_CHECKING:
    from tidegate.core.band import Band


class Flow:
    """One tenant within one class."""

    __slots__ = (
        "_line",
        "band",
        "booked",
        "counter",
        "entry",
        "is_active",
        "running",
        "tail_at",
        "tenant",
        "turns",
        "waiting",
    )

    def __init__(self, tenant: Tenant, band: Band) -> None:
        self.tenant = tenant
        self.band = band
        self.counter = 0.0  # weighted tokens served, over weight
        self.running = 0
        self.booked = 0  # calendar slots outstanding
        self.tail_at = float("-inf")  # of this flow's calendar
        self.is_active = False
        self.entry = 0  # the one valid entry in the band's heap
        self.turns: Turns | None = None  # from the first request on that names an end user
        self._line = Line()
        self.waiting: OrderedDict[int, Waiter] = self._line.waiting

    def seat(self, waiter: Waiter) -> None:
        """Take a seat in the order of the tenant's own requests."""
        if self.turns is None and waiter.ask.end_user is None:
            self._line.seat(waiter)
            return
        self.waiting[waiter.ask.ticket] = waiter
        if self.turns is None:
            self.turns = Turns(list(self.waiting.values()))
            self._line = Line()  # the order is the turns' from now on
        else:
            self.turns.seat(waiter)

    def head(self) -> Waiter | None:
        """The tenant's next request."""
        return self._line.head() if self.turns is None else self.turns.head()

    def first(self, most: int) -> list[Waiter]:
        """The tenant's next requests in order, at most this many."""
        return self._line.first(most) if self.turns is None else self.turns.first(most)

    def leave(self, ticket: int) -> None:
        """Give up a seat."""
        del self.waiting[ticket]
        if self.turns is not None:
            self.turns.leave(ticket)

    def pass_through(self) -> None:
        """What taking a seat and leaving it at once does to the tenant's turn, while nobody waits."""
        if self.counter < self.band.floor:
            self.counter = self.band.floor

    @property
    def load(self) -> float:
        """Seats taken, over weight."""
        return len(self.waiting) / self.tenant.limits.weight
