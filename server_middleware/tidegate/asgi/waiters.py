"""Those who wait, each with a future, and the one timer by which the gate is looked at again.

Law of this file: a future is answered once; whoever is answered twice keeps the first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.core.decisions import Admit, Refuse

Answer = Admit | Refuse


class Waiters(dict[int, "asyncio.Future[Answer]"]):
    """Futures by ticket."""

    def answer(self, answer: Answer) -> bool:
        """Wake the one it is for; `False`: nobody waits for it any more."""
        future = self.get(answer.ticket)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def fail(self, ticket: int, error: Exception) -> bool:
        """Wake one with an error; `False`: it has been answered, or nobody waits."""
        future = self.get(ticket)
        if future is None or future.done():
            return False
        future.set_exception(error)
        return True


class Alarm:
    """One timer, set anew with every look.

    Args:
        clock: monotonic seconds.
        ring: called at the instant.
    """

    __slots__ = ("_at", "_clock", "_loop", "_ring", "_timer")

    def __init__(self, clock: Callable[[], float], ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def set(self, at: float | None) -> None:
        """Ring at that instant, and at no other; `None`: not at all."""
        if self._timer is not None:
            if at == self._at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._at = at
            self._timer = self._loop.call_later(max(0.0, at - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._ring()
