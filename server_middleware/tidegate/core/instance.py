"""One engine instance: may this candidate run there now?

Law of this file: `verdict` is the only place where the bounds are asked, in this order: the state of the
signal, the watermark, the engine's own queue, sequences, unread prompt tokens, present level, projected
peak. It changes nothing. A lone request always runs: nothing would ever get easier for it.
"""

from __future__ import annotations

import math

from tidegate.core.blind import ERROR_CUT, GAP_CUT, LATE_CUT, BlindBudget, Usual
from tidegate.core.calibration import Calibration
from tidegate.core.growth import Growth
from tidegate.core.ledger import Lease, Ledger
from tidegate.core.occupancy import Demand
from tidegate.core.options import GateOptions
from tidegate.core.pace import PaceGuard
from tidegate.core.prefill import Prefill
from tidegate.core.prompt_counter import PromptCounter
from tidegate.core.prompts import PromptSizes
from tidegate.core.reading import Reading
from tidegate.core.signal import FRESH, STALE, Signal, State
from tidegate.core.verdict import FITS, Ceiling, Verdict

HIGH_BEFORE_KNOWN, HIGH_ONCE_KNOWN, HIGH_WHEN_CERTAIN = 0.82, 0.955, 0.96
HYSTERESIS = 0.015
RAMP_S = 10.0  # after a blind spell the budget widens to the full capacity over this long
DEFAULT_SERVICE_S = 4.0
TINY_SHARE = 0.02  # of the capacity: what the margin is kept for, where it is of the top class


class Instance:
    """Ledger, signal and calibration of one engine instance."""

    def __init__(self, name: str, options: GateOptions) -> None:
        self.name = name
        self.options = options
        self.ledger = Ledger()
        self.signal = Signal(options.signal)
        self.calibration = Calibration(options.kv, options.max_tenants, is_shared=options.is_shared)
        self.budget = BlindBudget(options.signal.blind_concurrency)
        self.pace = PaceGuard(options.kv.target_inter_token_s)
        self.prefill = Prefill(options.kv.max_prefill_tokens)
        self.growth = Growth()
        self.prompt_counter = PromptCounter()
        self.service_s = Usual(0.1)
        self.admitted_since_reading = 0
        self.lengths_known = False
        self._read_bounds()

    def _read_bounds(self) -> None:
        """What only a reading changes, so that no decision computes it.

        A watermark that is set always holds; else it is narrow once capacity and lengths are known. Where
        every lease is charged with its declared maximum the peak is an upper bound, and a watermark far
        below it would hold back what surely fits.
        """
        kv, reading = self.options.kv, self.signal.reading
        self.capacity = self.calibration.capacity(reading)  # tokens, `None` while unknown
        high = HIGH_BEFORE_KNOWN
        if self.capacity and self.ledger.is_certain:
            high = HIGH_WHEN_CERTAIN
        elif self.capacity and self.lengths_known:
            high = HIGH_ONCE_KNOWN
        self.high_watermark = high if kv.high_watermark is None else kv.high_watermark
        low = self.high_watermark - HYSTERESIS if kv.low_watermark is None else kv.low_watermark
        self.low_watermark = min(low, self.high_watermark)  # re-opens below it
        is_wider = kv.high_watermark is None  # for the top class, by half of what is kept free more for it
        self.top_watermark = (1 + self.high_watermark) / 2 if is_wider else self.high_watermark
        self.block_tokens: float = (reading.block_tokens if reading else None) or kv.block_tokens
        stated = reading.max_model_tokens if reading else None
        self.context_limit: float | None = kv.max_model_tokens or stated  # prompt and answer together
        self.stated_capacity = kv.capacity_tokens or (reading.capacity_tokens if reading else None)
        self.stated_sequences = kv.max_sequences
        if self.stated_sequences is None and reading is not None:
            self.stated_sequences = reading.max_sequences
        bounds = (self.context_limit, self.stated_capacity)
        self.least_bound = min([bound for bound in bounds if bound is not None], default=math.inf)
        self.is_asleep = reading is not None and reading.asleep
        self.is_queueing = self.signal.is_queueing(self.options.queue.max_waiting_in_engine)

    @property
    def max_sequences(self) -> int | None:
        """The engine's bound on sequences running at once, less where they slow each other down."""
        return self.pace.bound(self.stated_sequences)

    def may_hold(self, floor: float) -> bool:
        """Whether a prompt of so many tokens at least can ever run here, as far as is known."""
        context, capacity = self.context_limit, self.stated_capacity
        return (context is None or floor < context) and (capacity is None or floor <= capacity)

    @property
    def mean_service_s(self) -> float:
        """Of completed leases here."""
        return self.service_s.value or DEFAULT_SERVICE_S

    def margin(self, now: float, *, is_top: bool = False) -> float:
        """The adaptive margin, or what chance may add to the peak where that is more; wider while stale.

        What is kept free for chance is open to the top class: it is small, and it must not wait.
        """
        return self._margin(0.0 if is_top else self.ledger.risk(), now)

    def _margin(self, risk: float, now: float) -> float:
        known, most = self.calibration.margin, self.options.kv.margin_max
        margin = (risk if risk > known else known) + self.signal.extra_margin(now)
        return margin if margin < most else most

    def level(self) -> float | None:
        """The measured level carried forward to now."""
        return self.signal.level(self.ledger.held_tokens(), self.capacity)

    def state(self, now: float) -> State:
        """What the readings are worth; the watermark is brought up first, since it is part of that."""
        signal = self.signal
        level = signal.level(self.ledger.held_tokens(), self.capacity)
        signal.is_above(level, self.high_watermark, self.low_watermark)
        return signal.state(now)

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

    def observe(self, reading: Reading, now: float) -> None:
        """Take in a reading."""
        self.prefill.observe(reading, now)
        self.growth.observe(reading, self.ledger, self.signal.read_at, now)
        self.calibration.learn(reading, self.ledger, self.signal.elapsed_s(now))
        self.signal.take(reading, self.ledger.held_tokens(), now)
        self.admitted_since_reading = 0
        self._read_bounds()

    def learn_prompts(self, reading: Reading, sizes: PromptSizes, now: float) -> None:
        """What the engine's prompt counter says of the tokenizer; shares keep the tokens they stand for."""
        sizes.is_counted |= reading.prompt_tokens is not None and not self.options.is_shared
        counted = self.prompt_counter.take(reading, self.ledger, now)
        if counted is None or self.options.is_shared:
            return
        before = {model: sizes.scale(model) for model in counted.texts}
        sizes.learn_counted(counted.texts, counted.tokens)
        for model, scale in before.items():
            for tenant in self.calibration.tenants:
                if not sizes.is_known(tenant, model):
                    self.calibration.restate(tenant, sizes.scale(model) / scale)

    def start(self, lease: Lease, now: float) -> None:
        """Charge a lease."""
        ledger = self.ledger
        ledger.add(lease)
        self.prompt_counter.started(lease)
        self.admitted_since_reading += 1
        self.signal.busy(len(ledger.leases), now)

    def end(self, ticket: int, now: float, *, has_completed: bool = True) -> Lease:
        """Take a lease off the books."""
        lease = self.ledger.remove(ticket)
        self.prompt_counter.ended(lease, has_completed=has_completed)
        self.growth.ended(lease, self.signal.read_at, now)
        self.signal.busy(len(self.ledger.leases), now, has_completed=has_completed)
        return lease

    def first_token(self, lease: Lease, now: float) -> None:
        """A stream has begun."""
        self.ledger.mark_first_token(lease, now)
        if self.budget.first_token(now - lease.started_at, lease.ask.prompt_tokens):
            self._distress(LATE_CUT, now)

    def token(self, gap_s: float, tokens: float, now: float) -> None:
        """A stream has moved on by `tokens` per sequence, or has been silent for `gap_s` so far."""
        if self.budget.token(gap_s, tokens):
            self._distress(GAP_CUT, now)
        self.pace.take(self.budget.inter_token_s.value, self.ledger.seats, now)

    def error(self, now: float) -> None:
        """The engine has answered with an error."""
        self._distress(ERROR_CUT, now)

    def limited(self, now: float, *, by: Verdict) -> None:
        """Somebody was held back; while blind that lets the budget grow in time."""
        self.prefill.is_binding = by is Verdict.PREFILL
        if self.is_blind(now):
            self.budget.limiting(now, self.mean_service_s)

    def is_blind(self, now: float) -> bool:
        """No reading tells the truth while work is running."""
        state = self.state(now)
        return state is State.BLIND or (state is State.FROZEN and bool(self.ledger.leases))

    def _distress(self, factor: float, now: float) -> None:
        if self.is_blind(now):
            self.budget.cut(factor, now, self.mean_service_s)

    def lag_tokens(self, prompt: float) -> float:
        """Tokens the others generate per sequence while this prompt waits and is read."""
        pace = self.budget.inter_token_s.value
        if not self.prefill.rate or not pace or not self.ledger.leases:
            return 0.0
        return (self.ledger.unread_prompt + prompt) / self.prefill.rate / pace


def _tokens(demand: Demand) -> float:
    """From its start to its end."""
    return demand.held + demand.sequences * demand.left
