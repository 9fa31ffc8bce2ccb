"""A gate that only has figures: for the operator's page, the terminal view and their tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tidegate.asgi.types import Receive, Scope, Send
from tidegate.console import Console, ConsoleOptions
from tidegate.core.statistics import ClassStatistics, InstanceStatistics, Statistics, TenantStatistics

CAPACITY_TOKENS = 16_384


def instance(name: str = "engine-0", **changed: Any) -> InstanceStatistics:
    """One instance under a healthy load."""
    row = InstanceStatistics(
        name=name,
        state="fresh",
        level=0.73,
        age_s=0.31,
        capacity_tokens=CAPACITY_TOKENS,
        held_tokens=11_960,
        projected_peak_tokens=14_620,
        high_watermark=0.95,
        margin=0.04,
        kp=0.92,
        leases=23,
        waiting_in_engine=0,
        running_in_engine=23,
        preemptions=0,
    )
    return replace(row, **changed)


def statistics(**changed: Any) -> Statistics:
    """A busy afternoon."""
    names = [("system", 0, 1, 0.0, 1.0), ("vip", 0, 3, 0.0, 1.0)]
    names += [("standard", 41, 17, 6.4, 0.97), ("batch", 96, 2, 21.0, 0.9)]
    whole = Statistics(
        is_open=True,
        instances=(instance(),),
        classes=tuple(
            ClassStatistics(name=name, queued=queued, running=running, oldest_wait_s=wait, kv_ceiling=ceiling)
            for name, queued, running, wait, ceiling in names
        ),
        tenants=tuple(
            TenantStatistics(
                name=name, priority_class=row, queued=queued, running=running, virtual_tokens=1_000.0
            )
            for name, row, queued, running in (
                ("nightly-eval", "batch", 96, 2),
                ("search-team", "standard", 30, 9),
                ("support-bot", "standard", 11, 8),
                ("board-room", "vip", 0, 3),
                ("health", "system", 0, 1),
            )
        ),
        queued=137,
        queued_bytes=412_000,
        running=23,
        completions_per_s=7.9,
        booked_slots=58,
        admitted=48_211,
        refused={"queue_full": 612, "wait_too_long": 148, "rate_limited": 57, "too_early": 9},
    )
    return replace(whole, **changed)


@dataclass
class Faults:
    """A count that a test may raise."""

    count: int = 0


class FakeGate:
    """Shows whatever `now` holds; `console` records it on a clock of its own."""

    def __init__(self, options: ConsoleOptions | None = None) -> None:
        self.mode = "enforce"
        self.faults = Faults()
        self.now = statistics()
        self.time_s = 1_000.0
        self.refused_lately: dict[str, int] = {"nightly-eval": 118, "search-team": 4}
        self.console = Console(
            options or ConsoleOptions(),
            self,
            clock=lambda: self.time_s,
            refused_lately=lambda: self.refused_lately,
        )

    def statistics(self) -> Statistics:
        """The snapshot."""
        return self.now

    def tick(self, **changed: Any) -> None:
        """One second passes, and some figures change."""
        self.time_s += 1.0
        self.now = replace(self.now, **changed)
        self.console.record(self.now)

    def live_through(self, seconds: int) -> None:
        """A flood that comes and goes, for a history worth looking at."""
        end = self.now
        surges = [
            math.exp(-(((second - seconds * 0.55) / (seconds * 0.16)) ** 2)) for second in range(seconds)
        ]
        for second, surge in enumerate(surges):
            ahead = seconds - second
            wobble = 0.03 * math.sin(second / 5.0) + 0.02 * math.sin(second / 2.3)
            settle = max(0.0, 1 - ahead / 30)  # the last half minute runs into the present
            level = min(0.94, (1 - settle) * (0.42 + 0.5 * surge + wobble) + settle * 0.73)
            refused = int(sum(4 * later for later in surges[second:]))
            peak = CAPACITY_TOKENS * min(0.945, level + 0.14)
            self.tick(
                instances=(instance(level=level, projected_peak_tokens=peak),),
                queued=int(150 * surge + 8 + settle * 120),
                running=int(12 + 16 * surge + 1.5 * math.sin(second / 4) + settle * 9),
                admitted=end.admitted - 8 * ahead + int(40 * wobble),
                refused={**end.refused, "queue_full": max(0, end.refused["queue_full"] - refused)},
                classes=tuple(
                    replace(row, oldest_wait_s=14 * surge + settle * row.oldest_wait_s) for row in end.classes
                ),
            )
        self.tick(**{name: getattr(end, name) for name in end.__slots__})

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The console, and a plain 404 of the app behind it."""
        if scope["type"] != "http":
            return
        if self.console.serves(scope):
            await self.console(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": [(b"x-from", b"app")]})
        await send({"type": "http.response.body", "body": b"the app's own 404"})
