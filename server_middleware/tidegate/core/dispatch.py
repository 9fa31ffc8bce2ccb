"""Who starts next.

Law of this file: it chooses and changes nothing but its own counters. Classes go in order. The overdue
head of a class that had none of the last three dispatches is promoted, and is judged at the top ceiling;
once three more have gone before it, none passes beside which it would not fit, or else it would starve. So
a lower class gets one dispatch in four at least, and one that is served anyway takes no reserve. A head
blocked by the KV ledger may be passed by a request that will be out of its way, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.core.band import Band
from tidegate.core.fair_queue import FairQueue
from tidegate.core.line import Waiter
from tidegate.core.options import GateOptions
from tidegate.core.pool import Placement, Pool
from tidegate.core.verdict import FITS, Ceiling, Verdict

RESERVE_S = 60.0  # a class not seen for this long lends its reserve
BETWEEN_PROMOTIONS = 3  # other dispatches between two promotions
FOLLOWERS = 4  # looked at behind a blocked head
SCAN_EVERY_S = 0.05  # passers are looked for this often at most; a blocked head costs nothing in between
PASSER_QUANTILE = 0.95  # who passes is judged by a long answer: choosing the hopeful would bias the sum


@dataclass(slots=True)
class Choice:
    """A waiter, the ceiling at which it was judged, and where it stands."""

    waiter: Waiter
    ceiling: Ceiling
    placement: Placement

    @property
    def verdict(self) -> Verdict:
        """Whether it fits, or the bound that bit."""
        return self.placement.verdict


class Dispatcher:
    """Chooses among the waiting."""

    def __init__(self, options: GateOptions, queue: FairQueue, pool: Pool) -> None:
        self._options = options
        self._queue = queue
        self._pool = pool
        self._dispatches = 0
        self._scanned_at = float("-inf")
        self.blocked_by: Verdict | None = None  # what held the first head back, at the last look
        shares = [option.kv_ceiling for option in options.classes]
        has_reserve = min(shares) < max(shares)
        self.top = Ceiling(max(shares))
        self._lowered = [Ceiling(share, is_lowered=True) for share in shares]
        self._lent = [Ceiling(max(shares), is_top=has_reserve and share == max(shares)) for share in shares]
        self._above = [[band for band in queue.bands if band.options.kv_ceiling > share] for share in shares]

    def ceiling(self, band: Band, now: float) -> Ceiling:
        """A class's own share of the capacity, or the top one while nobody needs the reserve."""
        for other in self._above[band.rank]:
            if other.running or now - other.seen_at <= RESERVE_S:
                return self._lowered[band.rank]
        return self._lent[band.rank]

    def at_once(self, waiter: Waiter, now: float) -> Placement | None:
        """Where the only one there is may start, if it may; what `next` would say of it, for less."""
        band = waiter.flow.band
        placement = self._pool.place(waiter.ask, waiter.kinds, waiter.quantile, self.ceiling(band, now), now)
        if placement.verdict is not FITS:
            return None
        self._count(band)
        return placement

    def next(self, now: float) -> Choice | None:
        """The request to start now, `None` if nobody may."""
        overdue = self._find_overdue(now)
        if overdue is not None and overdue.verdict is FITS:
            return overdue
        blocked: list[Choice] = []
        for waiter in self._in_order(blocked, now):
            quantile = max(waiter.quantile, PASSER_QUANTILE) if blocked else waiter.quantile
            choice = self._judge(waiter, quantile, self.ceiling(waiter.flow.band, now), now)
            if choice.verdict is FITS and not self._starves(overdue, choice, now):
                if all(self._may_pass(choice, head, now) for head in blocked):
                    self._scanned_at = now if blocked else self._scanned_at
                    return choice
            elif choice.verdict is not FITS or not blocked:
                if waiter.blocked_since is None:
                    waiter.blocked_since = now
                blocked.append(choice)
        self.blocked_by = blocked[0].verdict if blocked else None
        return None

    def started(self, choice: Choice) -> None:
        """Count a dispatch: against the other classes' patience, and the heads it passed."""
        waiter = choice.waiter
        self._count(waiter.flow.band)
        for band in self._queue.bands[: waiter.flow.band.rank + 1]:
            head = band.head()
            if head is not None and head is not waiter and head.blocked_since is not None:
                head.passes += 1

    def _count(self, served: Band) -> None:
        self._dispatches += 1
        served.served_at = self._dispatches

    def since_served(self, band: Band) -> int:
        """Dispatches of other classes since its last one."""
        return self._dispatches - band.served_at

    def next_overdue_at(self, now: float) -> float | None:
        """When the next class becomes overdue, and may then be judged at the top ceiling."""
        first: float | None = None
        for band in self._queue.bands:
            oldest = band.oldest()
            if oldest is not None:
                instant = oldest.seated_at + band.starvation_bound_s
                if instant > now and (first is None or instant < first):
                    first = instant
        return first

    def _find_overdue(self, now: float) -> Choice | None:
        """The longest overdue class's head, judged at the top ceiling."""
        worst: tuple[float, Waiter] | None = None
        for band in self._queue.bands:
            if self.since_served(band) < BETWEEN_PROMOTIONS:
                continue
            oldest = band.oldest()
            if oldest is None:
                continue
            late_s = now - oldest.seated_at - band.starvation_bound_s
            head = band.head() if late_s >= 0 else None
            if head is not None and (worst is None or late_s > worst[0]):
                worst = (late_s, head)
        return None if worst is None else self._judge(worst[1], worst[1].quantile, self.top, now)

    def _starves(self, overdue: Choice | None, choice: Choice, now: float) -> bool:
        """Whether starting this one keeps an overdue head out that has let enough others pass."""
        if overdue is None or self.since_served(overdue.waiter.flow.band) < 2 * BETWEEN_PROMOTIONS:
            return False
        candidate, kept_out = choice.placement, overdue.placement
        if choice.waiter is overdue.waiter or candidate.instance is not kept_out.instance:
            return False
        limit = candidate.instance.limit(self.top, now)
        if kept_out.verdict is not Verdict.KV or limit is None:
            return True
        return candidate.instance.ledger.peak_beside([kept_out.demand, candidate.demand]) > limit

    def _in_order(self, blocked: list[Choice], now: float) -> Iterator[Waiter]:
        """Heads by class; behind the first blocked one, now and then, those who might pass it."""
        is_routed = len(self._pool.by_name) > 1
        for band in self._queue.bands:
            head = band.head()
            if head is None:
                continue
            if blocked and not is_routed and not self._may_scan(blocked[0], now):
                return
            was_free = not blocked
            yield head
            if blocked and was_free and (is_routed or self._may_scan(blocked[0], now)):
                yield from band.followers(head, FOLLOWERS)
        if blocked:
            self._scanned_at = now

    def _may_scan(self, head: Choice, now: float) -> bool:
        if now - self._scanned_at < SCAN_EVERY_S:
            return False
        return head.verdict is Verdict.KV and self._is_passable(head, now)

    def _is_passable(self, head: Choice, now: float) -> bool:
        """Whether this blocked head may still be passed: so many times, for so long."""
        since, bounds = head.waiter.blocked_since, self._options.queue
        if since is None or head.waiter.passes >= bounds.max_passes:
            return False
        return now - since <= bounds.max_pass_s

    def _judge(self, waiter: Waiter, quantile: float, ceiling: Ceiling, now: float) -> Choice:
        return Choice(waiter, ceiling, self._pool.place(waiter.ask, waiter.kinds, quantile, ceiling, now))

    def _may_pass(self, choice: Choice, head: Choice, now: float) -> bool:
        """Whether it may start before this blocked head."""
        routed = head.waiter.ask.instance
        candidate = choice.placement
        if routed is not None and routed != candidate.instance.name:
            return True
        if head.verdict is not Verdict.KV or not self._is_passable(head, now):
            return False
        limit = candidate.instance.limit(head.ceiling, now)
        if limit is None:
            return False
        ledger, demand = candidate.instance.ledger, head.placement.demand
        steps = ledger.earliest_fit(demand, limit)
        return not ledger.would_delay(demand, candidate.demand, steps, limit)
