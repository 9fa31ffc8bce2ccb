"""What a caller may say about one call, without touching the client it goes through.

Law: context variables only, so that it works through any SDK, in threads and in tasks alike.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from .core.policy import RetryPolicy
from .waits import OnWait, check_listener


@dataclasses.dataclass(frozen=True, slots=True)
class CallOptions:
    """Overrides for the calls made inside a `call_options` block."""

    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    on_wait: OnWait | None = None


_NONE = CallOptions()
_current: contextvars.ContextVar[CallOptions] = contextvars.ContextVar("tidegate_call_options", default=_NONE)


@contextlib.contextmanager
def call_options(*, on_wait: OnWait | None = None, **changes: Any) -> Iterator[None]:
    """Change the policy, or listen to the waits, of every call made inside the block.

    `changes` are fields of RetryPolicy (`deadline_s=30`, `idempotent=True`). Blocks nest; the inner one wins.
    A block holds for the task or thread it is in: around the `yield` of a generator that a framework runs in
    another one it changes nothing.

    Raises:
        ValueError: for a value RetryPolicy refuses.
        TypeError: for a field RetryPolicy does not have, or an `on_wait` that is no plain function.
    """
    RetryPolicy(**changes)
    check_listener(on_wait)
    outer = _current.get()
    token = _current.set(CallOptions({**outer.changes, **changes}, on_wait or outer.on_wait))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # ended in another task than it began in: nothing is set here
            _current.reset(token)


def current_options() -> CallOptions:
    """The overrides in force here."""
    return _current.get()
