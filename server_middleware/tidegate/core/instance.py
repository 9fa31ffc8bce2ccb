"""One engine instance: may this candidate run there now?

Law of this file: `verdict` is the only place where the bounds are asked, in this order: the state of the
signal, the watermark, the engine's own queue, sequences, unread prompt tokens, present level, projected
peak. It changes nothing. A lone request always runs: nothing would ever get easier for it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

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
from tidegate.core.signal import Signal, State

HIGH_BEFORE_KNOWN, HIGH_ONCE_KNOWN, HIGH_WHEN_CERTAIN = 0.82, 0.955, 0.96
HYSTERESIS = 0.015
RAMP_S = 10.0  # after a blind spell the budget widens to the full capacity over this long
DEFAULT_SERVICE_S = 4.0
TINY_SHARE = 0.02  # of the capacity: what the margin is kept for, where it is of the top class


class Ceiling(NamedTuple):
    """What a class may use: its share, and how it stands to the others."""

    share: float  # of the capacity
    is_lowered: bool = False  # a class above has a higher one, and needs it
    is_top: bool = False  # its own is the highest there is: the others keep a reserve free for it


class Verdict(Enum):
    """Whether it fits, or the bound that bit."""

    FITS = "fits"
    LEVEL = "level"  # above the watermark, stalled or asleep
    ENGINE_QUEUE = "engine_queue"
    SEQUENCES = "sequences"
    PREFILL = "prefill"
    KV = "kv"
    BLIND = "blind"


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
        self.block_tokens: float = (reading.block_tokens if reading else None) or kv.block_tokens
        stated = reading.max_model_tokens if reading else None
        self.context_limit: float | None = kv.max_model_tokens or stated  # prompt and answer together

    @property
    def max_sequences(self) -> int | None:
        """The engine's bound on sequences running at once, less where they slow each other down."""
        stated = self.options.kv.max_sequences
        if stated is None and self.signal.reading is not None:
            stated = self.signal.reading.max_sequences
        return self.pace.bound(stated)

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
        margin = max(self.calibration.margin, risk) + self.signal.extra_margin(now)
        return min(self.options.kv.margin_max, margin)

    def level(self) -> float | None:
        """The measured level carried forward to now."""
        return self.signal.level(self.ledger.held_tokens(), self.capacity)

    def is_above_watermark(self) -> bool:
        """With hysteresis. An engine without a KV gauge is never above it."""
        return self.signal.is_above(self.level(), self.high_watermark, self.low_watermark)

    def state(self, now: float) -> State:
        """What the readings are worth; the watermark is brought up first, since it is part of that."""
        self.is_above_watermark()
        return self.signal.state(now)

    def limit(self, ceiling: Ceiling, now: float) -> float | None:
        """Tokens the projected peak of our leases may reach, `None` while the capacity is unknown."""
        return self._limit(self.margin(now, is_top=ceiling.is_top), ceiling, now)

    def _limit(self, margin: float, ceiling: Ceiling, now: float) -> float | None:
        if self.capacity is None:
            return None
        whole = self.capacity * (1 - margin) * self._ramp(now)
        return whole * ceiling.share - self.calibration.foreign_tokens

    def verdict(self, demand: Demand, prompt: float, ceiling: Ceiling, now: float) -> Verdict:
        """Whether a candidate may start now."""
        state = self.state(now)
        is_blind = state is State.BLIND or (state is State.FROZEN and bool(self.ledger.leases))
        if state is State.ASLEEP or (state is State.STALLED and self.ledger.leases):
            return Verdict.LEVEL
        if is_blind and self.options.signal.on_blind == "closed":
            return Verdict.BLIND
        if not is_blind and state is not State.FROZEN and self._is_closed_to(ceiling):
            return Verdict.LEVEL
        if not self.ledger.leases:
            return Verdict.FITS
        most = self.max_sequences
        if most is not None and self.ledger.sequences + demand.sequences > max(1, int(most * ceiling.share)):
            return Verdict.SEQUENCES
        if is_blind and self.options.signal.on_blind == "open":
            return Verdict.FITS
        if not is_blind and self.signal.is_queueing(self.options.queue.max_waiting_in_engine):
            return Verdict.ENGINE_QUEUE
        if self.prefill.exceeds(
            self.ledger.unread_prompt, prompt, self.pace.share, is_lowered=ceiling.is_lowered
        ):
            return Verdict.PREFILL
        return self._kv_verdict(demand, ceiling, now, is_blind=is_blind)

    def _kv_verdict(self, demand: Demand, ceiling: Ceiling, now: float, *, is_blind: bool) -> Verdict:
        """The present level, then the projected peak; the margin is for the top class's smallest."""
        is_tiny = ceiling.is_top and not is_blind and self._is_tiny(demand)
        most = self._limit(0.0 if is_tiny else self._margin(0.0, now), ceiling, now)
        if self.capacity is None or most is None:
            return self._verdict_without_capacity(demand, is_blind=is_blind)
        held = self.ledger.held_tokens() + self.calibration.foreign_tokens
        if held + demand.held > self.capacity * self._watermark_of(ceiling) * ceiling.share:
            return Verdict.KV
        least = most if ceiling.is_top else self._limit(self.options.kv.margin_max, ceiling, now)
        fits = self.ledger.surely_fits(demand, least or 0.0, most)
        if fits is None:
            limit = most if is_tiny else self.limit(ceiling, now)
            fits = self.ledger.fits(demand, limit or 0.0)
        return Verdict.FITS if fits else Verdict.KV

    def _is_tiny(self, demand: Demand) -> bool:
        tokens = demand.held + demand.sequences * demand.left
        return self.capacity is not None and tokens <= TINY_SHARE * self.capacity

    def _verdict_without_capacity(self, demand: Demand, *, is_blind: bool) -> Verdict:
        """Watermark and credit: each lease admitted since the reading counts as one share of the level."""
        reading = self.signal.reading
        if is_blind or reading is None or reading.kv_usage is None:
            fits = self.ledger.sequences + demand.sequences <= self.budget.concurrency
            return Verdict.FITS if fits else Verdict.BLIND
        known = len(self.ledger.leases) - self.admitted_since_reading
        share = reading.kv_usage / known if known > 0 else 0.0
        share = max(share, 1 / self.options.signal.blind_concurrency) if known < 8 else share
        credited = reading.kv_usage + share * (self.admitted_since_reading + 1)
        return Verdict.FITS if credited <= self.high_watermark else Verdict.KV

    def _is_closed_to(self, ceiling: Ceiling) -> bool:
        """The top class waits for its watermark alone: hysteresis is for those who keep clear of it."""
        if not (self.signal.is_closed and ceiling.is_top):
            return self.signal.is_closed
        level = self.level()
        return level is not None and level >= self._watermark_of(ceiling)

    def _watermark_of(self, ceiling: Ceiling) -> float:
        """The one of all, or, where it was not set, half of what it keeps free more for the top class."""
        high = self.high_watermark
        is_wider = ceiling.is_top and self.options.kv.high_watermark is None
        return (1 + high) / 2 if is_wider else high

    def _ramp(self, now: float) -> float:
        """The blind budget's share, and after a blind spell a ramp from it back to all."""
        share = self.budget.share
        if share >= 1.0:
            return 1.0
        state = self.state(now)
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
        self.ledger.add(lease)
        self.prompt_counter.started(lease)
        self.admitted_since_reading += 1
        self.signal.busy(len(self.ledger.leases), now)

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
        self.pace.take(self.budget.inter_token_s.value, self.ledger.sequences, now)

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
