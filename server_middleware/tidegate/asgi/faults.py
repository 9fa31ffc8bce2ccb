"""What happens when the gate itself breaks: it must never become the outage.

Law of this file: an unexpected exception of ours in a decision opens the gate for that request (or refuses
it with 503, if so configured), is counted and logged; several within seconds open the gate for everyone for
a while, and that is said loudly. An open gate still has a local bound on concurrency. One that decides about
nobody (an answer that cannot be counted, a page that cannot be drawn) is counted and logged, no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from tidegate.telemetry.events import AdmissionEvent, EventKind, Hook

OnInternalError = Literal["open", "closed"]

TRIP_COUNT = 5  # faults ...
TRIP_WINDOW_S = 10.0  # ... within this long open the gate for everyone ...
PASS_THROUGH_S = 30.0  # ... for this long; then a fresh gate is tried


class FaultPolicy:
    """Counts faults and says whether a request may pass without the gate.

    Args:
        on_internal_error: `open` lets the request pass under the bound, `closed` refuses it.
        max_concurrency: requests that may run past a broken gate at once.
        clock: monotonic seconds.
        hook: hears of every fault, and of the gate opening and closing itself.
        on_recover: called before the gate is tried again; makes a fresh one.
    """

    def __init__(
        self,
        on_internal_error: OnInternalError,
        max_concurrency: int,
        *,
        clock: Callable[[], float],
        hook: Hook,
        on_recover: Callable[[], None],
    ) -> None:
        self._opens = on_internal_error == "open"
        self._max_concurrency = max_concurrency
        self._clock = clock
        self._hook = hook
        self._on_recover = on_recover
        self._recent: deque[float] = deque(maxlen=TRIP_COUNT)
        self._pass_until: float | None = None
        self._passing = 0
        self.count = 0

    def note(self, where: str, error: BaseException) -> None:
        """Count and tell one unexpected exception of ours that decides about nobody."""
        self._tell(where, error)

    def _tell(self, where: str, error: BaseException) -> str:
        self.count += 1
        cause = error.__cause__ or error
        detail = f"{type(cause).__name__}: {cause}"
        self._hook(AdmissionEvent(kind=EventKind.FAULT, reason=where, detail=detail, error=error))
        return detail

    def record(self, where: str, error: BaseException) -> None:
        """Count one unexpected exception of ours in a decision; opens the gate when they pile up."""
        detail, now = self._tell(where, error), self._clock()
        self._recent.append(now)
        piled_up = len(self._recent) == TRIP_COUNT and now - self._recent[0] <= TRIP_WINDOW_S
        if piled_up and self._opens and self._pass_until is None:
            self._pass_until = now + PASS_THROUGH_S
            self._say(
                "opened",
                f"{TRIP_COUNT} faults within {TRIP_WINDOW_S:g} s, the last in {where} ({detail}): "
                f"for {PASS_THROUGH_S:g} s everything passes without admission control, "
                f"{self._max_concurrency} requests at once (internal_error_concurrency).",
            )

    def is_passing_through(self) -> bool:
        """Whether the gate has opened itself for everyone; closes it again when the time is over."""
        if self._pass_until is None:
            return False
        if self._clock() < self._pass_until:
            return True
        self._pass_until = None
        self._recent.clear()
        self._on_recover()
        self._say("closed", "A fresh gate is tried, after everything was passed through.")
        return False

    def try_pass(self) -> bool:
        """Take one place past the gate; every `True` is given back by `passed`."""
        if not self._opens or self._passing >= self._max_concurrency:
            return False
        self._passing += 1
        return True

    def passed(self) -> None:
        """A request that went past the gate has ended."""
        self._passing -= 1

    def _say(self, what: str, detail: str) -> None:
        self._hook(AdmissionEvent(kind=EventKind.PASS_THROUGH, reason=what, detail=detail))
