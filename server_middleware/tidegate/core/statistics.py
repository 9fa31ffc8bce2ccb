"""What a gate looks like at one instant, for people and for gauges.

Law of this file: values that do not change. Sizes are tokens and times seconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatistics:
    """One engine instance as the gate sees it; tokens."""

    name: str
    state: str  # fresh | stale | blind | frozen | stalled | asleep
    level: float | None  # last measured KV usage, 0..1
    age_s: float | None  # of the last reading
    capacity_tokens: float | None
    held_tokens: float
    projected_peak_tokens: float
    high_watermark: float
    margin: float
    kp: float  # learnt measured-to-charged factor of prompts
    leases: int
    waiting_in_engine: int | None
    running_in_engine: int | None
    preemptions: float
    stated_capacity_tokens: float | None = None  # by the engine itself
    learnt_capacity_tokens: float | None = None  # by our tokens over the level, once seen often enough
    capacity_disputed: bool = False  # those two are far apart: `capacity_tokens` says which one counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStatistics:
    """One priority class."""

    name: str
    queued: int
    running: int
    oldest_wait_s: float
    kv_ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatistics:
    """One tenant; only those with work queued or running are listed."""

    name: str
    priority_class: str
    queued: int
    running: int
    virtual_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A frozen snapshot of the gate; nothing in it changes afterwards."""

    is_open: bool
    instances: tuple[InstanceStatistics, ...] = ()
    classes: tuple[ClassStatistics, ...] = ()
    tenants: tuple[TenantStatistics, ...] = ()
    queued: int = 0
    queued_bytes: int = 0
    running: int = 0
    completions_per_s: float = 0.0
    booked_slots: int = 0
    admitted: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by reason
