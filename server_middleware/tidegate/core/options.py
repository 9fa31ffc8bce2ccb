"""The core's options: frozen, checked at construction, each default with its reason.

Law of this file: an options object that exists is consistent. No option is read from the environment here;
`tidegate.settings` does that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tidegate.core.option_checks import fraction, positive, require

OnBlind = Literal["local", "open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOptions:
    """How the KV cache is accounted for; tokens throughout.

    `high_watermark` unset means 0.82 until capacity and answer lengths are known and 0.955 after,
    since a ledger that sees the future peak needs no wide guard (figures: docs/theory.md).
    """

    high_watermark: float | None = None
    low_watermark: float | None = None  # re-open below it; unset: 0.015 under the high one
    capacity_tokens: int | None = None  # unset: read from the engine, else learnt
    block_tokens: int = 16
    margin: float = 0.05  # start of the adaptive safety margin
    margin_min: float = 0.03
    margin_max: float = 0.20
    max_sequences: int | None = None  # unset: as the engine states, else unbounded
    max_prefill_tokens: int | None = None  # unset: two seconds of the measured prefill rate
    bytes_per_token: float = 3.0  # prior for prompts, learnt per tenant from reported usage
    default_output_tokens: int = 256  # prior for answers that declare no maximum
    max_model_tokens: int | None = None  # the context limit; unset: as the engine states
    target_inter_token_s: float | None = None  # concurrency shrinks while tokens come slower

    def __post_init__(self) -> None:
        high = self.high_watermark
        fraction("kv.high_watermark", high)
        fraction("kv.low_watermark", self.low_watermark)
        if self.low_watermark is not None:
            ceiling = 0.95 if high is None else high
            require(
                self.low_watermark <= ceiling,
                "kv.low_watermark",
                self.low_watermark,
                f"it must not lie above kv.high_watermark ({ceiling}).",
            )
        for name in (
            "capacity_tokens",
            "max_sequences",
            "max_prefill_tokens",
            "max_model_tokens",
            "target_inter_token_s",
            "block_tokens",
            "bytes_per_token",
            "default_output_tokens",
        ):
            positive(f"kv.{name}", getattr(self, name))
        require(
            0 <= self.margin_min <= self.margin <= self.margin_max < 1,
            "kv.margin",
            self.margin,
            f"set it between margin_min ({self.margin_min}) and margin_max ({self.margin_max}), below 1.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Bounds of the waiting room as a whole; each class has its own besides."""

    max_requests: int = 1024
    max_bytes: int = 256 * 1024 * 1024
    max_waiting_in_engine: int = 2  # the queue must live at the door, not in the engine
    max_passes: int = 8  # how often a blocked head may be passed ...
    max_pass_s: float = 2.0  # ... and for how long

    def __post_init__(self) -> None:
        positive("queue.max_requests", self.max_requests)
        positive("queue.max_bytes", self.max_bytes)
        positive("queue.max_waiting_in_engine", self.max_waiting_in_engine, zero=True)
        positive("queue.max_passes", self.max_passes, zero=True)
        positive("queue.max_pass_s", self.max_pass_s, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOptions:
    """One priority class. The list in `GateOptions.classes` is ordered, highest first."""

    name: str
    kv_ceiling: float = 1.0  # share of the capacity this class may fill
    max_wait_s: float = 30.0  # well below the 60 s at which proxies cut silent connections
    max_queued: int = 512
    weight: float = 1.0  # share of the retry calendar; between tenants of a class theirs counts
    starvation_s: float | None = None  # promoted after this long; unset: two thirds of max_wait_s

    def __post_init__(self) -> None:
        require(bool(self.name), "classes[].name", self.name, "give the class a name.")
        where = f"classes[{self.name}]"
        fraction(f"{where}.kv_ceiling", self.kv_ceiling)
        positive(f"{where}.max_wait_s", self.max_wait_s)
        positive(f"{where}.max_queued", self.max_queued)
        positive(f"{where}.weight", self.weight)
        positive(f"{where}.starvation_s", self.starvation_s)
        if self.starvation_s is not None:
            require(
                self.starvation_s < self.max_wait_s,
                f"{where}.starvation_s",
                self.starvation_s,
                f"set it below max_wait_s ({self.max_wait_s}), else requests expire before their turn.",
            )

    @property
    def starvation_bound_s(self) -> float:
        """After this long in the queue the head of the class is promoted."""
        return self.max_wait_s * 2 / 3 if self.starvation_s is None else self.starvation_s


DEFAULT_CLASSES: tuple[ClassOptions, ...] = (
    ClassOptions(name="system", kv_ceiling=1.0, max_wait_s=30.0, max_queued=64, weight=16.0),
    ClassOptions(name="vip", kv_ceiling=1.0, max_wait_s=30.0, max_queued=256, weight=8.0),
    ClassOptions(name="standard", kv_ceiling=0.97, max_wait_s=30.0, max_queued=512, weight=3.0),
    ClassOptions(name="batch", kv_ceiling=0.90, max_wait_s=45.0, max_queued=512, weight=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What one tenant may do. Rates of `None` mean no quota; bursts default to ten seconds of the rate."""

    priority_class: str = "standard"
    weight: float = 1.0
    requests_per_s: float | None = None
    request_burst: float | None = None
    tokens_per_s: float | None = None
    token_burst: float | None = None
    max_concurrency: int | None = None
    max_queued: int | None = None  # unset: a quarter of the room, at least 8

    @property
    def rates(self) -> tuple[float | None, ...]:
        """All that makes up the quota."""
        return self.requests_per_s, self.request_burst, self.tokens_per_s, self.token_burst

    def __post_init__(self) -> None:
        require(bool(self.priority_class), "tenants[].priority_class", self.priority_class, "name a class.")
        positive("tenants[].weight", self.weight)
        for name in (
            "requests_per_s",
            "request_burst",
            "tokens_per_s",
            "token_burst",
            "max_concurrency",
            "max_queued",
        ):
            positive(f"tenants[].{name}", getattr(self, name))
        for rate, burst in (("requests_per_s", "request_burst"), ("tokens_per_s", "token_burst")):
            require(
                getattr(self, burst) is None or getattr(self, rate) is not None,
                f"tenants[].{burst}",
                getattr(self, burst),
                f"a burst needs its rate: set {rate} too.",
            )
        if self.request_burst is not None:
            require(
                self.request_burst >= 1,
                "tenants[].request_burst",
                self.request_burst,
                "it must hold one request.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffOptions:
    """Full-jitter exponential back-off between looks at a level that is above the watermark."""

    base_s: float = 0.05
    factor: float = 1.5
    cap_s: float = 0.5

    def __post_init__(self) -> None:
        positive("backoff.base_s", self.base_s)
        require(
            math.isfinite(self.factor) and self.factor >= 1, "backoff.factor", self.factor, "set at least 1."
        )
        positive("backoff.cap_s", self.cap_s)
        require(
            self.cap_s >= self.base_s,
            "backoff.cap_s",
            self.cap_s,
            f"it must not lie below base_s ({self.base_s}).",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarOptions:
    """Arrival slots for refused callers."""

    max_retry_after_s: float = 55.0  # older SDKs ignore more than 60
    max_booked_per_tenant: int = 10_000

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.max_retry_after_s) and self.max_retry_after_s >= 1,
            "reply.max_retry_after_s",
            self.max_retry_after_s,
            "set at least 1 second.",
        )
        positive("calendar.max_booked_per_tenant", self.max_booked_per_tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOptions:
    """When a reading stops being the truth, and what holds then."""

    stale_after_s: float = 2.0
    blind_after_s: float = 10.0
    on_blind: OnBlind = "local"
    blind_concurrency: int = 32  # start of the local bound while blind with no known capacity

    def __post_init__(self) -> None:
        positive("probe.stale_after_s", self.stale_after_s)
        positive("probe.blind_after_s", self.blind_after_s)
        require(
            self.blind_after_s >= self.stale_after_s,
            "probe.blind_after_s",
            self.blind_after_s,
            f"it must not lie below stale_after_s ({self.stale_after_s}).",
        )
        positive("probe.blind_concurrency", self.blind_concurrency)
        require(
            self.on_blind in ("local", "open", "closed"),
            "probe.on_blind",
            self.on_blind,
            "choose 'local' (bound by what the gate itself sees), 'open' or 'closed'.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """Everything the core needs to know. Bounds: see each group."""

    kv: KvOptions = field(default_factory=KvOptions)
    queue: QueueOptions = field(default_factory=QueueOptions)
    classes: tuple[ClassOptions, ...] = DEFAULT_CLASSES
    tenants: dict[str, TenantLimits] = field(default_factory=dict)
    default_tenant: TenantLimits = field(default_factory=TenantLimits)
    backoff: BackoffOptions = field(default_factory=BackoffOptions)
    calendar: CalendarOptions = field(default_factory=CalendarOptions)
    signal: SignalOptions = field(default_factory=SignalOptions)
    max_tenants: int = 10_000  # tenants remembered at once
    processes: int = 1  # each with a gate that sends to the same engines; the bounds here are those of one

    def __post_init__(self) -> None:
        require(bool(self.classes), "classes", self.classes, "name at least one class.")
        names = [option.name for option in self.classes]
        require(len(set(names)) == len(names), "classes", names, "class names must differ.")
        for tenant, limits in [*self.tenants.items(), ("default_tenant", self.default_tenant)]:
            require(
                limits.priority_class in names,
                f"tenants[{tenant}].priority_class",
                limits.priority_class,
                f"choose one of {', '.join(names)}.",
            )
        positive("max_tenants", self.max_tenants)
        positive("processes", self.processes)

    @property
    def is_shared(self) -> bool:
        """Whether gates of other processes send to the same engines."""
        return self.processes > 1
