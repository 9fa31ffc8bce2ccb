"""Which engines have gone, although work is still charged to them.

Law of this file: silence alone proves nothing, since a metrics page may fail beside an engine that works. But
where the engines that can be read run all that is charged to all of them, for longer than a moment, the
silent ones have nothing: the balancer sends to the others. What is charged to one that has gone would be
room that nobody has. It is back with its next reading.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.instance import Instance

FOR_S = 1.0  # figures of the engines and our own are not of one instant
WHOLE = 0.9  # of what is charged: some of it is on its way


class Absence:
    """Watches the instances of one pool."""

    def __init__(self) -> None:
        self._since: float | None = None

    def look(self, instances: Iterable[Instance], now: float) -> None:
        """Note on the instances which of them have gone."""
        every = list(instances)
        silent = {item for item in every if _is_silent(item, now)}
        suspects = [item for item in silent if item.ledger.leases and not item.has_gone]
        if not suspects or not _run_all_of_it(every, silent):
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= FOR_S:
            for item in suspects:
                item.has_gone = True


def _is_silent(item: Instance, now: float) -> bool:
    """Whether it cannot be read, or its source has not named it for long (a pod that was replaced)."""
    age_s = item.signal.age_s(now)
    return item.is_silent or (age_s is not None and age_s >= item.options.signal.blind_after_s)


def _run_all_of_it(every: list[Instance], silent: set[Instance]) -> bool:
    """Whether the instances that can be read run what is charged to all, by this gate and others like it."""
    present = 0
    for item in every:
        reading = item.signal.reading
        if item in silent or reading is None:
            continue
        if reading.running is None:
            return False
        present += reading.running + (reading.waiting or 0)
    charged = sum(item.ledger.sequences for item in every)
    return present >= WHOLE * charged * every[0].options.processes
