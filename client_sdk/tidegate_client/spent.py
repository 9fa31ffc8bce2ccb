"""What an SDK on top of the transport has already spent on one of its calls.

Law: an SDK that retries by itself sends each of its tries as a new request, numbered. Such a request
continues the
call before it, in the same task or thread: the same attempts, the same waiting, the same deadline. Otherwise
the two layers would multiply.
"""

from __future__ import annotations

import contextvars
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """What a call had used when it ended without an answer for its caller.

    Attributes:
        target: method and URL, to recognise the next try.
        attempts: attempts sent.
        waited_s: seconds waited.
        started: monotonic instant at which the first try began.
        key: the idempotency key it went by, if it was ours.
        error: what the last attempt failed with, if it did.
    """

    target: tuple[str, str]
    attempts: int
    waited_s: float
    started: float
    key: str | None
    error: BaseException | None


_last: contextvars.ContextVar[Spent | None] = contextvars.ContextVar("tidegate_spent", default=None)


def continued(request: Any, sdk_count: int) -> Spent | None:
    """The call that `request` is a further try of (`sdk_count` times tried before); None for a new call."""
    spent = _last.get()
    if spent is None:
        return None
    _last.set(None)
    return spent if sdk_count and spent.target == target_of(request) else None


def remember(spent: Spent) -> None:
    """Keep what was spent for the SDK's next try."""
    _last.set(spent)


def target_of(request: Any) -> tuple[str, str]:
    """Method and URL of a request."""
    return request.method, str(request.url)
