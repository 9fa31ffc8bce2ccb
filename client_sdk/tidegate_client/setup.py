"""What all calls of one transport or guard have in common.

Law: made once, never changed.
"""

from __future__ import annotations

import dataclasses

from .board import SHARED, Board
from .core.policy import RetryPolicy
from .library import Library
from .timebase import REAL_TIME, Timebase
from .waits import OnWait, check_listener


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
    former: Setup | None = None,
) -> Setup:
    """A Setup that takes what is not given from the `former` one, or else the defaults.

    Raises:
        TypeError: `policy` is no RetryPolicy, or `on_wait` no plain function.
    """
    check_listener(on_wait)
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise TypeError(f"policy is {policy!r}: give a RetryPolicy, such as RetryPolicy(max_attempts=3).")
    base = former or Setup(library, RetryPolicy(), REAL_TIME, SHARED, None)
    return Setup(
        library,
        policy or base.policy,
        timebase or base.timebase,
        board or base.board,
        on_wait or base.on_wait,
    )
