"""The order of equals (case Q8): first come, first served, whatever the clock says; a higher class first."""

from __future__ import annotations

from tests.core.driver import Driver
from tidegate.core.options import DEFAULT_CLASSES, ClassOptions, GateOptions, KvOptions, QueueOptions


def one_at_a_time() -> Driver:
    return Driver(
        GateOptions(
            kv=KvOptions(capacity_tokens=10**7, max_sequences=1),
            queue=QueueOptions(max_requests=5000),
            classes=(
                ClassOptions(name="vip", max_wait_s=1e6),
                ClassOptions(name="standard", max_wait_s=1e6, max_queued=5000, starvation_s=1e5),
            ),
        )
    )


def test_q8_a_thousand_equals_at_one_instant_leave_as_they_came() -> None:
    """Q8: equal class, equal tenant, an identical clock; then one of a higher class, which is next."""
    driver = one_at_a_time()
    running = driver.admit("t").ticket
    equals = [driver.queue("t").ticket for _ in range(1000)]
    high = driver.queue("boss", "vip").ticket
    left = []
    for _ in range(1001):
        (running,) = driver.release(running, prompt_tokens=10, output_tokens=90)
        left.append(running)
    assert left == [high, *equals]


def test_q13_nobody_waits_as_long_as_proxies_bear_silence() -> None:
    """Q13: by default the longest wait ends before the 50 to 60 s at which idle connections are cut."""
    assert max(row.max_wait_s for row in DEFAULT_CLASSES) <= 45
