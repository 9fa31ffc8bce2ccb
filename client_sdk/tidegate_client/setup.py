"""What all calls of one transport or guard have in common.

Law: made once, never changed.
"""

from __future__ import annotations

import dataclasses

from .board import SHARED, Board
from .core.policy import RetryPolicy
from .library import Library
from .timebase import REAL_TIME, Timebase
from .waits import OnWait


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """A library, what the caller is willing to do, and where the process keeps what it knows."""

    library: Library
    policy: RetryPolicy
    timebase: Timebase
    board: Board
    on_wait: OnWait | None


def set_up(
    library: Library,
    policy: RetryPolicy | None,
    on_wait: OnWait | None,
    board: Board | None,
    timebase: Timebase | None,
) -> Setup:
    """A Setup with the defaults filled in."""
    return Setup(library, policy or RetryPolicy(), timebase or REAL_TIME, board or SHARED, on_wait)
