"""What the client tells whoever listens.

Law: frozen values, complete in themselves: a listener needs nothing else to draw a countdown.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class WaitEvent:
    """A call is waiting before its next attempt, or its wait has become longer.

    Attributes:
        reason: why, in the server's word where it gave one (`queue_full`, `http_429`, `cooling_down`,
            `connect_error`).
        wait_s: seconds from now until the next attempt, as far as is known.
        until: the same as an instant of the monotonic clock; a countdown shows `until - time.monotonic()`.
        wall_until: the same in epoch seconds.
        attempt: number of the attempt that will follow, from 1.
        max_attempts: how many the policy allows.
        origin: scheme, host and port of the server.
        scope: what the refusal covers: `request`, `tenant`, `class` or `model`.
        source: the header or rule the time came from.
        call_id: the same for all events of one call.
    """

    reason: str
    wait_s: float
    until: float
    wall_until: float
    attempt: int
    max_attempts: int
    origin: str
    scope: str
    source: str
    call_id: int
