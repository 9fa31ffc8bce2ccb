"""A gate's picture, as the hooks that show it are given one."""

from __future__ import annotations

from tidegate.core.statistics import ClassStatistics, InstanceStatistics, Statistics

INSTANCE = InstanceStatistics(
    name="default",
    state="fresh",
    level=0.5,
    age_s=0.2,
    capacity_tokens=1000.0,
    held_tokens=400.0,
    projected_peak_tokens=700.0,
    high_watermark=0.82,
    margin=0.05,
    kp=1.0,
    leases=3,
    waiting_in_engine=None,
    running_in_engine=3,
    preemptions=2.0,
)
STATISTICS = Statistics(
    is_open=True,
    instances=(INSTANCE,),
    classes=(ClassStatistics(name="vip", queued=2, running=1, oldest_wait_s=0.7, kv_ceiling=1.0),),
    queued=2,
    running=1,
)
