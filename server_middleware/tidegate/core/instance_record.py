"""What is on record of one engine instance: what runs there, what its readings say, what both have taught.

Law of this file: it keeps the record and judges nobody; `instance` does. What only a reading changes is
computed when one comes, not at a decision.
"""

from __future__ import annotations

import math

from tidegate.core.blind import ERROR_CUT, GAP_CUT, LATE_CUT, BlindBudget, Usual
from tidegate.core.calibration import Calibration
from tidegate.core.growth import Growth
from tidegate.core.ledger import Lease, Ledger
from tidegate.core.options import GateOptions
from tidegate.core.pace import PaceGuard
from tidegate.core.prefill import Prefill
from tidegate.core.prompt_counter import PromptCounter
from tidegate.core.prompts import PromptSizes
from tidegate.core.reading import Reading
from tidegate.core.signal import Signal, State
from tidegate.core.verdict import Verdict

HIGH_BEFORE_KNOWN, HIGH_ONCE_KNOWN, HIGH_WHEN_CERTAIN = 0.82, 0.955, 0.96
HYSTERESIS = 0.015
DEFAULT_SERVICE_S = 4.0


class InstanceRecord:
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
        self.is_silent = False  # the newest attempt to read it has failed
        self.has_gone = False  # and it does none of the work that is charged to it
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

    def level(self) -> float | None:
        """The measured level carried forward to now."""
        return self.signal.level(self.ledger.held_tokens(), self.capacity)

    def state(self, now: float) -> State:
        """What the readings are worth; the watermark is brought up first, since it is part of that."""
        signal = self.signal
        level = signal.level(self.ledger.held_tokens(), self.capacity)
        signal.is_above(level, self.high_watermark, self.low_watermark)
        return signal.state(now)

    def is_blind(self, now: float) -> bool:
        """No reading tells the truth while work is running."""
        state = self.state(now)
        return state is State.BLIND or (state is State.FROZEN and bool(self.ledger.leases))

    def lag_tokens(self, prompt: float) -> float:
        """Tokens the others generate per sequence while this prompt waits and is read."""
        pace = self.budget.inter_token_s.value
        if not self.prefill.rate or not pace or not self.ledger.leases:
            return 0.0
        return (self.ledger.unread_prompt + prompt) / self.prefill.rate / pace

    def observe(self, reading: Reading, now: float) -> None:
        """Take in a reading."""
        self.prefill.observe(reading, now)
        self.growth.observe(reading, self.ledger, self.signal.read_at, now)
        self.calibration.learn(reading, self.ledger, self.signal.elapsed_s(now))
        self.signal.take(reading, self.ledger.held_tokens(), now)
        self.admitted_since_reading = 0
        self.is_silent = self.has_gone = False
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

    def _distress(self, factor: float, now: float) -> None:
        if self.is_blind(now):
            self.budget.cut(factor, now, self.mean_service_s)
