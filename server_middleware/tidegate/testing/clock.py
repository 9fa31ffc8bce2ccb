"""A clock that moves only when told.

Law of this file: nothing here reads real time. A test hands `FakeClock` to whatever wants a clock or a
sleep and then moves it, so that waiting costs no time and every instant is exact.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools


class FakeClock:
    """A clock (call it) and a sleep (await `sleep`) that a test moves by hand.

    Args:
        start_s: what the clock reads at first, in seconds. Not zero, so that code which takes 0 for "never"
            shows.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def __call__(self) -> float:
        """The present instant in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Moves the clock at once (backwards too, if negative) and wakes the sleepers that are due."""
        self._now_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now_s:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Returns when the clock has moved by `seconds`; yields once when there is nothing to wait for."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, next(self._order), woken))
        await woken

    async def run(self, seconds: float) -> None:
        """Moves the clock by `seconds`; at every sleeper's instant on the way the tasks settle."""
        end_s = self._now_s + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            self.advance(max(0.0, self._sleepers[0][0] - self._now_s))
            await settle()
        self.advance(end_s - self._now_s)
        await settle()


async def settle(turns: int = 20) -> None:
    """Gives the other tasks of the loop `turns` turns, enough for a chain of that many wake-ups."""
    for _ in range(turns):
        await asyncio.sleep(0)
