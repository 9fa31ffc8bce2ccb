"""Waits as lines of the standard log.

Law: one line per wait; the credential and the body never appear.
"""

from __future__ import annotations

import logging

from ..core.events import WaitEvent
from ..waits import OnWait


def log_waits(logger: logging.Logger | None = None, level: int = logging.INFO) -> OnWait:
    """A listener that writes each wait to `logger` (`tidegate_client` by default)."""
    target = logger or logging.getLogger("tidegate_client")

    def write(event: WaitEvent) -> None:
        target.log(
            level,
            "%s: waiting %.1f s before attempt %d of %d (%s, %s)",
            event.origin,
            event.wait_s,
            event.attempt,
            event.max_attempts,
            event.reason,
            event.source,
        )

    return write
