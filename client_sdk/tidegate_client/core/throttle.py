"""Client-side throttling: calls that would most likely be refused are not sent.

Law: pure. Over the last two minutes, with `requests` attempts and `accepts` of them let in, a call is turned
down with probability max(0, (requests - k * accepts) / (requests + 1)). Source: Google, "Site Reliability
Engineering", ch. 21, "Handling Overload".
"""

from __future__ import annotations

import collections

_WINDOW_S = 120.0
_SLICE_S = 10.0


class Throttle:
    """The last two minutes with one origin. `k`: how many attempts per accepted one are still sent; 2 is
    usual.
    """

    def __init__(self, k: float) -> None:
        self._k = k
        self._slices: collections.deque[list[float]] = collections.deque()

    def turns_down(self, now: float, uniform: float) -> bool:
        """Count a call, and say whether it should not be sent."""
        this = self._slice(now)
        requests = sum(each[1] for each in self._slices)
        accepts = sum(each[2] for each in self._slices)
        this[1] += 1
        return uniform < (requests - self._k * accepts) / (requests + 1)

    def let_in(self, now: float) -> None:
        """An attempt was not refused."""
        self._slice(now)[2] += 1

    def _slice(self, now: float) -> list[float]:
        while self._slices and self._slices[0][0] < now - _WINDOW_S:
            self._slices.popleft()
        if not self._slices or now - self._slices[-1][0] >= _SLICE_S:
            self._slices.append([now, 0.0, 0.0])
        return self._slices[-1]
