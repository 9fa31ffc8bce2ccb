"""How randomness is added to a wait.

Law: the cap bounds the range, the draw comes last, so that no cap ever turns many callers into one instant. A
range
grows with the attempt: who comes back for the fifth time has shown that the crowd is large.
"""

from __future__ import annotations

_MAX_DOUBLINGS = 60


def growing_s(base_s: float, cap_s: float, attempt: int) -> float:
    """`base_s` doubled once per attempt after the first (`attempt` counts from 1), at most `cap_s`, in
    seconds.
    """
    return float(min(cap_s, base_s * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS)))
