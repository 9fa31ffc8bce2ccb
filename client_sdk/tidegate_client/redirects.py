"""A redirect may name the least time before it is followed (RFC 9110, section 10.2.3).

Law: the redirect itself is delivered at once, since a transport does not know whether anybody follows it. Who
does takes the extensions of the redirected request along, and so the time.
"""

from __future__ import annotations

from typing import Any

from .core.policy import RetryPolicy
from .fields import advice_from
from .timebase import Timebase

_FOLLOW_AT = "tidegate_follow_at"


def follow_at(request: Any) -> float:
    """The monotonic instant before which `request` is not sent; 0 when it follows no such redirect."""
    instant: float = request.extensions.get(_FOLLOW_AT, 0.0)
    return instant


def note_redirect(request: Any, response: Any, now: float, policy: RetryPolicy, timebase: Timebase) -> None:
    """Remember, with the redirected `request`, when its redirect may be followed."""
    advice = advice_from(response.headers.multi_items(), timebase.wall())
    if advice.wait_s is not None and "retry-after" in advice.source:
        jitter_s = policy.jitter_base_s * timebase.uniform()
        instant = now + max(advice.wait_s, policy.min_wait_s) + jitter_s
        request.extensions = {**request.extensions, _FOLLOW_AT: instant}
