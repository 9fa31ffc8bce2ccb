"""What the readings teach about one instance: prompt share, foreign load, margin, capacity.

Law of this file: the measured level corrects the ledger, never the other way round, and every token of
difference is explained once. What is measured beyond our leases goes either to the prompt share or to
foreign load (other doors to the same engine), never to both.

The prompt share (`kp`) is measured over estimated prompt tokens: below 1 where prompts share blocks,
above where estimates are too small. It is learnt per tenant by normalised least mean squares over the
leases a reading has covered, so that the shared prefixes of one tenant do not vouch for the unique
prompts of another. It rises at once and falls slowly, and only while the engine neither queues nor
preempts: a share that follows the level freely follows its own effect (figures: docs/theory.md). Nothing is
learnt from prompts that the rounding to blocks outweighs: a lone one of twenty tokens in a block of 128 would
double what every newcomer is charged.
The capacity a level is measured against is the one the engine states, unless its counters gainsay it
(`capacity.py`).
"""

from __future__ import annotations

import math
from collections import OrderedDict

from tidegate.core.capacity import StatedCapacity
from tidegate.core.ledger import Lease, Ledger
from tidegate.core.options import KvOptions
from tidegate.core.reading import Reading

LEAST_SHARE, MOST_SHARE = 0.1, 2.0
FALL_RATE = 0.3  # of the difference, per reading ...
FALL_SPAN_S = 1.0  # ... where readings are this far apart; closer ones count for less
MARGIN_STEP = 0.03  # after a preemption ...
MARGIN_EVERY_S = 5.0  # ... once per bout: one overshoot is seen in several readings
MARGIN_DECAY_PER_S = 0.002
LEAST_PROMPTS = 4.0  # what blocks may round off, times this, must be outweighed for prompts to say anything
LEAST_LEVEL_TO_LEARN = 0.05  # below it the gauge is mostly rounding
CAPACITY_SAMPLES = 3
CAPACITY_RATE = 0.2


class Calibration:
    """Learns from each fresh reading; tokens and shares of the capacity."""

    def __init__(self, options: KvOptions, max_tenants: int, *, is_shared: bool = False) -> None:
        self._options = options
        self._is_shared = is_shared
        self._max_tenants = max_tenants
        self._shares: OrderedDict[str, float] = OrderedDict()
        self.margin = options.margin
        self.foreign_tokens = 0.0
        self.kp = 1.0  # over all covered leases, weighted by prompt
        self.stated = StatedCapacity()
        self._learnt_capacity: float | None = None
        self._capacity_samples = 0
        self._preemptions: float | None = None
        self._since_bout_s = MARGIN_EVERY_S

    def share(self, tenant: str) -> float:
        """The learnt share of a tenant's prompts; for a stranger the common one, never below 1."""
        known = self._shares.get(tenant)
        return max(1.0, self.kp) if known is None else known

    def charged_share(self, tenant: str) -> float:
        """The share that a prompt is charged before it has been read: it is never discounted."""
        known = self._shares.get(tenant, self.kp)
        return known if known > 1.0 else 1.0

    def restate(self, tenant: str, ratio: float) -> None:
        """This tenant's estimates have become `ratio` times what they were: the share keeps its tokens.

        That does not raise it above 1. One that is still falling from estimates that were too high would
        else be taken for prompts that hold more than they count.
        """
        known = self._shares.get(tenant)
        if known is not None:
            most = MOST_SHARE if ratio >= 1.0 else max(1.0, known)
            self._shares[tenant] = min(most, max(LEAST_SHARE, known / ratio))

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those with a learnt share."""
        return tuple(self._shares)

    @property
    def is_capacity_disputed(self) -> bool:
        """The engine's counters gainsay the capacity it states, and nobody has set one."""
        return self._options.capacity_tokens is None and self.stated.is_disputed

    @property
    def learnt_capacity(self) -> float | None:
        """Capacity by our own tokens over the measured level, once it has been seen often enough."""
        return self._learnt_capacity if self._capacity_samples >= CAPACITY_SAMPLES else None

    def capacity(self, reading: Reading | None) -> float | None:
        """Tokens: configured, else as the engine states and its counters do not gainsay, else learnt."""
        if self._options.capacity_tokens is not None:
            return float(self._options.capacity_tokens)
        if reading is not None and reading.capacity_tokens:
            return self.stated.in_force(float(reading.capacity_tokens))
        return self.learnt_capacity

    def learn(self, reading: Reading, ledger: Ledger, elapsed_s: float) -> None:
        """Take in a reading that followed the one before by `elapsed_s`."""
        has_preempted = self._count_preemptions(reading, elapsed_s)
        if reading.kv_usage is None:
            return
        if reading.capacity_tokens:
            self.stated.take(reading, is_settled=_is_settled(reading, ledger))
        elif self._options.capacity_tokens is None:
            self._learn_capacity(reading.kv_usage, ledger)
            return
        covered = self._cover(ledger)
        used = reading.kv_usage * (self.capacity(reading) or 0.0)
        is_calm = not has_preempted and not reading.waiting
        self._explain(used, covered, ledger, reading, is_calm, elapsed_s)
        ledger.changed()

    def _count_preemptions(self, reading: Reading, elapsed_s: float) -> bool:
        """Whether the engine preempted since; a counter that went down has restarted."""
        before, self._preemptions = self._preemptions, reading.preemptions
        risen = before is not None and reading.preemptions is not None and reading.preemptions > before
        self._since_bout_s += elapsed_s
        if risen and self._since_bout_s >= MARGIN_EVERY_S:
            self._since_bout_s = 0.0
            self.margin = min(self._options.margin_max, self.margin + MARGIN_STEP)
        elif not risen:
            eased = self.margin - MARGIN_DECAY_PER_S * elapsed_s
            self.margin = max(self._options.margin_min, eased)
        return risen

    def _cover(self, ledger: Ledger) -> list[Lease]:
        """The leases past their first token; from now on they are charged by what is learnt."""
        covered = []
        for lease in ledger.leases.values():
            if lease.first_token_at is not None and not lease.is_drained:
                lease.is_covered = True
                covered.append(lease)
        return covered

    def _explain(
        self,
        used: float,
        covered: list[Lease],
        ledger: Ledger,
        reading: Reading,
        is_calm: bool,
        elapsed_s: float,
    ) -> None:
        prompts: dict[str, float] = {}
        for lease in covered:
            prompts[lease.ask.tenant] = prompts.get(lease.ask.tenant, 0.0) + lease.prompt * lease.spread.part
        expected = sum(self.share(tenant) * tokens for tenant, tokens in prompts.items())
        others = [lease for lease in ledger.leases.values() if not lease.is_covered and not lease.is_drained]
        grown = sum(lease.grown for lease in covered)
        low = expected + grown  # if no prompt in progress has been read at all ...
        high = low + sum(lease.held for lease in others)  # ... and if all have
        strangers = self._strangers(reading, ledger)
        surplus, shortage = used - high, low - used
        tells = sum(prompts.values()) >= LEAST_PROMPTS * _rounding([*covered, *others])
        self.foreign_tokens = 0.0
        if surplus > 0 and (strangers or not prompts):
            self.foreign_tokens = surplus
        elif surplus > 0:
            beyond = self._shift(prompts, surplus) if tells else surplus
            self.foreign_tokens = beyond if reading.running is None else 0.0
        elif tells and shortage > 0 and is_calm and strangers is not None and not strangers:
            self._shift(prompts, -shortage * FALL_RATE * min(1.0, elapsed_s / FALL_SPAN_S))
        total = sum(prompts.values())
        if total > 0:
            self.kp = sum(self.share(tenant) * tokens for tenant, tokens in prompts.items()) / total
        for lease in covered:
            lease.share = self.share(lease.ask.tenant)
            lease.refresh()

    def _strangers(self, reading: Reading, ledger: Ledger) -> bool | None:
        """Whether the engine runs more than we sent; `None` if it runs less, so our books are ahead.

        Beside other gates our capacity is a part, and the level one of the whole: what is missing from
        our part is no share that our prompts have saved.
        """
        if self._is_shared:
            return True
        if reading.running is None:
            return False
        present = reading.running + (reading.waiting or 0)
        if present < ledger.sequences * 0.75:
            return None
        return present > ledger.sequences + max(1, ledger.sequences // 10)

    def _shift(self, prompts: dict[str, float], tokens: float) -> float:
        """Spread a difference over the tenants' shares; returns what the clamps left unexplained."""
        power = sum(held * held for held in prompts.values())
        rest = tokens
        for tenant, held in prompts.items():
            before = self.share(tenant)
            after = min(MOST_SHARE, max(LEAST_SHARE, before + tokens * held / power if power else before))
            rest -= (after - before) * held
            self._shares[tenant] = after
            self._shares.move_to_end(tenant)
        while len(self._shares) > self._max_tenants:
            self._shares.popitem(last=False)
        return max(0.0, rest)

    def _learn_capacity(self, usage: float, ledger: Ledger) -> None:
        """Where nobody states it: our own tokens over the level, while all of ours are past prefill."""
        leases = ledger.leases.values()
        if usage < LEAST_LEVEL_TO_LEARN or not leases or not all(lease.is_prefilled for lease in leases):
            return
        estimate = ledger.held_tokens() / usage
        known = self._learnt_capacity
        rate = 1.0 if known is None else CAPACITY_RATE
        self._learnt_capacity = estimate if known is None else known + rate * (estimate - known)
        self._capacity_samples += 1


def _rounding(leases: list[Lease]) -> float:
    """Tokens by which blocks may be filled otherwise than by half: two standard deviations, at most all."""
    variance = sum(lease.pad * lease.pad / (3 * lease.sequences) for lease in leases)
    return min(sum(lease.pad for lease in leases), 2 * math.sqrt(variance))


def _is_settled(reading: Reading, ledger: Ledger) -> bool:
    """Whether only our requests run, and all of them are past their first token."""
    return reading.running == ledger.sequences > 0 and ledger.unread_prompt < 1.0
