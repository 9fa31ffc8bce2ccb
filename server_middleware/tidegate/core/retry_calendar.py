"""An arrival slot of its own for every refused request, so that callers come back one by one.

Law of this file: a wait already told stands. Each class and tenant has a tail; a new slot goes one
spacing behind it, the spacing being the flow's share of the rate at which the server gives slots back.
A later change of rate moves new slots only. A wait beyond `max_retry_after_s` takes no slot.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from tidegate.core.decisions import Ask, Uniform
from tidegate.core.flow import Flow
from tidegate.core.options import CalendarOptions

EARLY_S = 1.0  # this much before its instant a return still counts as on time ...
LATE_S = 5.0  # ... and this much after, or
LATE_SHARE = 0.25  # this share of the told wait, if that is longer
JITTER_SHARE, JITTER_MOST_S = 0.1, 2.0
CAPPED_SPREAD = 0.15  # waits without a slot fall into the last 15 % before the cap
CLAIM_RATE = 0.05
LEAST_CLAIMED = 0.25
PLACE_KEPT_S = 30.0  # a waiter that left may come back to its place for this long

END_USER = "\x00"  # between a tenant's name and its end user: no name holds it
Key = tuple[str, str]  # tenant, and its name for the request


def key_of(ask: Ask) -> Key | None:
    """What a returning request is known by: its own key, else its body."""
    owner = ask.tenant if ask.end_user is None else ask.tenant + END_USER + ask.end_user
    if ask.is_keyed and ask.identity is not None:
        return (owner, "key:" + ask.identity)
    if ask.digest is not None:
        return (owner, "digest:" + ask.digest.hex())
    return None if ask.identity is None else (owner, "name:" + ask.identity)


@dataclass(slots=True, eq=False)
class Slot:
    """When one refused request may come back, and when it first arrived."""

    key: Key | None
    flow: Flow
    told_at: float
    lapses_at: float
    arrived_at: float
    is_open: bool = True
    is_due: bool = False
    is_promised: bool = True  # False: kept for a waiter that left, no wait was told


@dataclass(slots=True)
class RetryCalendar:
    """Slots outstanding; seats are kept for those falling due."""

    options: CalendarOptions
    claimed: float = 1.0  # learnt share of slots that are used
    outstanding: int = 0
    due: dict[str, int] = field(default_factory=dict)  # class name -> slots due now, not yet claimed
    next_at: float = math.inf  # when `advance` has something to do
    _by_key: dict[Key, Slot] = field(default_factory=dict)
    _anonymous: dict[int, deque[Slot]] = field(default_factory=dict)  # by id of the flow
    _dues: list[tuple[float, int, Slot]] = field(default_factory=list)
    _lapses: list[tuple[float, int, Slot]] = field(default_factory=list)
    _sequence: int = 0

    def book(
        self,
        flow: Flow,
        key: Key | None,
        arrived_at: float,
        ahead_s: float,
        rate: float,
        now: float,
        uniform: Uniform,
    ) -> float:
        """Seconds to tell a refused caller.

        Args:
            ahead_s: time to serve what is queued ahead of it.
            rate: slots per second that come to this flow.
        """
        known = None if key is None else self._by_key.get(key)
        if known is not None and known.told_at > now:
            return known.told_at - now
        if known is not None:
            self._close(known)
        slot_at = max(flow.tail_at, now + ahead_s) + self.claimed / rate
        wait_s = slot_at - now
        wait_s += uniform() * min(JITTER_SHARE * wait_s, JITTER_MOST_S)
        if wait_s > self.options.max_retry_after_s or flow.booked >= self.options.max_booked_per_tenant:
            return self.options.max_retry_after_s * (1 - CAPPED_SPREAD * uniform())
        flow.tail_at = slot_at
        late_s = max(LATE_S, LATE_SHARE * wait_s)
        self._open(Slot(key, flow, now + wait_s, now + wait_s + late_s, arrived_at))
        return wait_s

    def keep_place(self, flow: Flow, key: Key, arrived_at: float, now: float) -> None:
        """A waiter has left; if the same request comes back soon, its place is its own."""
        if key not in self._by_key and flow.booked < self.options.max_booked_per_tenant:
            self._open(Slot(key, flow, now, now + PLACE_KEPT_S, arrived_at, is_promised=False))

    def find(self, flow: Flow, key: Key | None, *, is_retry: bool, now: float) -> Slot | None:
        """The slot of a returning request; a declared retry may take its tenant's nameless one."""
        slot = None if key is None else self._by_key.get(key)
        if slot is not None or not is_retry:
            return slot
        self._drop_closed(id(flow))
        nameless = self._anonymous.get(id(flow))
        if nameless and nameless[0].told_at - EARLY_S <= now:
            return nameless[0]
        return None

    def claim(self, slot: Slot) -> None:
        """The slot has been used."""
        if slot.is_open:
            self._learn(slot, 1.0)
            self._close(slot)

    def advance(self, now: float) -> None:
        """Note which slots fall due, and let lapse those nobody came for."""
        while self._dues and (self._dues[0][0] <= now or not self._dues[0][2].is_open):
            slot = heapq.heappop(self._dues)[2]
            if slot.is_open:
                slot.is_due = True
                name = slot.flow.band.options.name
                self.due[name] = self.due.get(name, 0) + 1
        while self._lapses and (self._lapses[0][0] <= now or not self._lapses[0][2].is_open):
            slot = heapq.heappop(self._lapses)[2]
            if slot.is_open:
                self._learn(slot, 0.0)
                self._close(slot)
        self.next_at = min([heap[0][0] for heap in (self._dues, self._lapses) if heap], default=math.inf)

    def due_in(self, class_name: str) -> int:
        """Seats to keep in a class."""
        return self.due.get(class_name, 0)

    def _learn(self, slot: Slot, used: float) -> None:
        if slot.key is not None and slot.is_promised:
            self.claimed = max(LEAST_CLAIMED, self.claimed + CLAIM_RATE * (used - self.claimed))

    def _open(self, slot: Slot) -> None:
        self.outstanding += 1
        slot.flow.booked += 1
        slot.flow.band.note_activity(slot.flow)
        self._sequence += 1
        if slot.key is None:
            self._anonymous.setdefault(id(slot.flow), deque()).append(slot)
        else:
            self._by_key[slot.key] = slot
        if slot.is_promised:
            self._note(self._dues, slot.told_at - EARLY_S, slot)
        self._note(self._lapses, slot.lapses_at, slot)

    def _note(self, heap: list[tuple[float, int, Slot]], at: float, slot: Slot) -> None:
        heapq.heappush(heap, (at, self._sequence, slot))
        self.next_at = min(self.next_at, at)

    def _close(self, slot: Slot) -> None:
        slot.is_open = False
        self.next_at = -math.inf  # there is something to clear away
        self.outstanding -= 1
        slot.flow.booked -= 1
        slot.flow.band.note_activity(slot.flow)
        if slot.is_due:
            self.due[slot.flow.band.options.name] -= 1
        if slot.key is not None:
            self._by_key.pop(slot.key, None)
        else:
            self._drop_closed(id(slot.flow))

    def _drop_closed(self, flow: int) -> None:
        """Nameless slots at the front that are closed; whoever declares nothing claims none of them."""
        nameless = self._anonymous.get(flow)
        while nameless and not nameless[0].is_open:
            nameless.popleft()
        if nameless is not None and not nameless:
            del self._anonymous[flow]
