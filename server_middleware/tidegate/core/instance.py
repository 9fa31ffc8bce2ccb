"""One engine instance: may this candidate run there now?

Law of this file: `verdict` is the only place where the bounds are asked, in this order: the state of the
signal, the watermark, the engine's own queue, sequences, unread prompt tokens, present level, projected
peak. It changes nothing. A lone request always runs: nothing would ever get easier for it.
"""

from __future__ import annotations

from tidegate.core.instance_record import InstanceRecord
from tidegate.core.occupancy import Demand
from tidegate.core.signal import FRESH, STALE, State
from tidegate.core.verdict import FITS, Ceiling, Verdict

RAMP_S = 10.0  # after a blind spell the budget widens to the full capacity over this long
TINY_SHARE = 0.02  # of the capacity: what the margin is kept for, where it is of the top class


class Instance(InstanceRecord):
    """Judges candidates by the record."""

    def margin(self, now: float, *, is_top: bool = False) -> float:
        """The adaptive margin, or what chance may add to the peak where that is more; wider while stale.

        What is kept free for chance is open to the top class: it is small, and it must not wait.
        """
        return self._margin(0.0 if is_top else self.ledger.risk(), now)

    def _margin(self, risk: float, now: float) -> float:
        known, most = self.calibration.margin, self.options.kv.margin_max
        margin = (risk if risk > known else known) + self.signal.extra_margin(now)
        return margin if margin < most else most

    def limit(self, ceiling: Ceiling, now: float) -> float | None:
        """Tokens the projected peak of our leases may reach, `None` while the capacity is unknown."""
        if self.capacity is None:
            return None
        return self._limit(self.capacity, self.margin(now, is_top=ceiling.is_top), ceiling, now)

    def _limit(self, capacity: float, margin: float, ceiling: Ceiling, now: float) -> float:
        whole = capacity * (1 - margin)
        if self.budget.share < 1.0:
            whole *= self._ramp(now)
        return whole * ceiling.share - self.calibration.foreign_tokens

    def verdict(self, demand: Demand, prompt: float, ceiling: Ceiling, now: float, seats: int = 1) -> Verdict:
        """Whether a candidate that takes so many seats may start now."""
        state, ledger, is_blind = self.state(now), self.ledger, False
        leases = ledger.leases
        if state is not FRESH and state is not STALE:
            is_blind = state is State.BLIND or (state is State.FROZEN and bool(leases))
            if state is State.ASLEEP or (state is State.STALLED and leases):
                return Verdict.LEVEL
            if is_blind and self.options.signal.on_blind == "closed":
                return Verdict.BLIND
        heeds_level = self.signal.is_closed and not is_blind and state is not State.FROZEN
        if heeds_level and self._is_closed_to(ceiling):
            return Verdict.LEVEL
        if not leases:
            return FITS
        most = self.stated_sequences if self.pace.share >= 1.0 else self.max_sequences
        seats += ledger.seats
        if most is not None and seats > most * ceiling.share and seats > 1:
            return Verdict.SEQUENCES
        if is_blind and self.options.signal.on_blind == "open":
            return FITS
        if self.is_queueing and not is_blind:
            return Verdict.ENGINE_QUEUE
        unread = ledger.unread_prompt
        if unread > 0 and self.prefill.exceeds(unread, prompt, self.pace.share, ceiling.is_lowered):
            return Verdict.PREFILL
        if self.capacity is None:
            return self._verdict_without_capacity(seats, is_blind=is_blind)
        return self._kv_verdict(self.capacity, demand, ceiling, now, is_blind=is_blind)

    def _kv_verdict(
        self, capacity: float, demand: Demand, ceiling: Ceiling, now: float, *, is_blind: bool
    ) -> Verdict:
        """The present level, then the projected peak; the margin is for the top class's smallest."""
        ledger, is_top = self.ledger, ceiling.is_top
        held = ledger.held_tokens() + self.calibration.foreign_tokens
        watermark = self.top_watermark if is_top else self.high_watermark
        if held + demand.held > capacity * watermark * ceiling.share:
            return Verdict.KV
        if not is_top:
            least = self._limit(capacity, self.options.kv.margin_max, ceiling, now)
            if ledger.surely_fits(demand, least):
                return FITS
        is_tiny = is_top and not is_blind and _tokens(demand) <= TINY_SHARE * capacity
        most = self._limit(capacity, 0.0 if is_tiny else self._margin(0.0, now), ceiling, now)
        if is_top and ledger.surely_fits(demand, most):
            return FITS
        if ledger.surely_exceeds(demand, most):
            return Verdict.KV
        margin = 0.0 if is_tiny else self.margin(now, is_top=is_top)
        fits = ledger.fits(demand, self._limit(capacity, margin, ceiling, now))
        return FITS if fits else Verdict.KV

    def _verdict_without_capacity(self, seats: int, *, is_blind: bool) -> Verdict:
        """Watermark and credit: each lease admitted since the reading counts as one share of the level."""
        reading = self.signal.reading
        if is_blind or reading is None or reading.kv_usage is None:
            return FITS if seats <= self.budget.concurrency else Verdict.BLIND
        known = len(self.ledger.leases) - self.admitted_since_reading
        share = reading.kv_usage / known if known > 0 else 0.0
        share = max(share, 1 / self.options.signal.blind_concurrency) if known < 8 else share
        credited = reading.kv_usage + share * (self.admitted_since_reading + 1)
        return Verdict.FITS if credited <= self.high_watermark else Verdict.KV

    def _is_closed_to(self, ceiling: Ceiling) -> bool:
        """Once it is closed; the top class waits for its watermark alone, without hysteresis."""
        if not ceiling.is_top:
            return True
        level = self.level()
        return level is not None and level >= self.top_watermark

    def _ramp(self, now: float) -> float:
        """The blind budget's share, and after a blind spell a ramp from it back to all."""
        share, state = self.budget.share, self.state(now)
        if state in (State.BLIND, State.FROZEN) or self.signal.was_blind_until is None:
            return share if state in (State.BLIND, State.FROZEN) else 1.0
        gone = (now - self.signal.was_blind_until) / RAMP_S
        return min(1.0, share + (1.0 - share) * max(0.0, gone))


def _tokens(demand: Demand) -> float:
    """From its start to its end."""
    return demand.held + demand.sequences * demand.left
