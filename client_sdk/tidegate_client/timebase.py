"""The clock, the randomness and the sleep of the shell, in one value that tests replace.

Law: the only reader of `time` and `random` in the package.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable


class Timebase:
    """Real time. `tidegate_client.testing.FakeClock` is the other one."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    wall: Callable[[], float] = staticmethod(time.time)
    uniform: Callable[[], float] = staticmethod(random.random)

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Suspend this task for `seconds`; cancellation ends it at once."""
        await asyncio.sleep(seconds)


REAL_TIME = Timebase()
