"""The ways to hear about waits.

Law: a listener never breaks a call: what it raises is logged and forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .core.events import WaitEvent

OnWait = Callable[[WaitEvent], object]
"""Called when a call starts to wait and when its wait becomes longer. It must not block: it runs on the
loop.
"""

_log = logging.getLogger("tidegate_client")


def tell(listener: OnWait | None, event: WaitEvent) -> None:
    """Hand `event` to `listener`, if there is one."""
    if listener is None:
        return
    try:
        listener(event)
    except Exception:  # noqa: BLE001  whatever a listener does wrong, the call goes on
        _log.exception("an on_wait listener failed; the call goes on")
