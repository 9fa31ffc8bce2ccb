"""The wait of one call before an attempt: its own, then its turn among the others.

Law: never shorter than told, and it ends at once, with an error, when it is known not to fit what the caller
allowed. The time that a listener takes is part of the wait.
"""

from __future__ import annotations

import math

from .call import Call
from .core.decision import GiveUp, Resend, Why
from .core.events import WaitEvent
from .waits import tell, tell_end

_LONGER_S = 1.0
"""A wait that grows by this much is told again."""


class GaveUpWaiting(Exception):
    """The call ends before its next attempt is sent; its decision says why."""


class Waiting:
    """Asked again and again until the call may send.

    Args:
        call: the call that waits.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._began: float | None = None
        self._told_until = -math.inf

    def poll(self) -> float | None:
        """None: send now. Otherwise the seconds after which to ask again, unless the turn's signal is set
        before.

        Raises:
            GaveUpWaiting: the wait does not fit what the caller allowed.
            RuntimeError: the client was closed meanwhile.
            Exception: what the last attempt failed with, when an SDK tries again after all attempts are
                spent.
        """
        call = self._call
        call.check_closed()
        call.check_spent()
        setup, turn = call.setup, call.turn
        now = setup.timebase.monotonic()
        if self._began is None:
            turn.latest = now + call.room_s(now)
            if setup.board.turns_down(call.origin, now, setup.timebase.uniform):
                self._give_up(now, None, Why.THROTTLED)
        if now < call.not_before:
            if call.not_before > turn.latest:
                self._give_up(now, call.not_before - now, Why.OVER_BUDGET)
            self._note(now, call.not_before)
            return max(0.0, call.not_before - setup.timebase.monotonic())
        wake_at = setup.board.poll(turn, now, setup.timebase.uniform)
        if wake_at is None:
            self._end(now)
            return None
        quiet_until = setup.board.quiet_until(turn)
        if quiet_until > turn.latest or now >= turn.latest:
            why = Why.COOLING_DOWN if call.last_response is None else Why.OVER_BUDGET
            left_s = max(quiet_until, turn.until) - now
            self._give_up(now, left_s if left_s > 0 else None, why)
        self._note(now, max(quiet_until, turn.until))
        return max(0.0, wake_at - setup.timebase.monotonic())

    def over(self) -> None:
        """The call waits no more, whichever way that came about."""
        if self._told_until > -math.inf:
            tell_end(self._call.on_wait, self._call.call_id)

    def _note(self, now: float, until: float) -> None:
        if self._began is None:
            self._began = now
        call = self._call
        if call.on_wait is not None and until > max(now, self._told_until + _LONGER_S):
            self._told_until = until
            tell(call.on_wait, self._event(now, until))

    def _event(self, now: float, until: float) -> WaitEvent:
        call = self._call
        reason, source, scope = call.origin.reason or "cooling_down", "shared", "tenant"
        if isinstance(call.decision, Resend):
            reason, source, scope = call.decision.reason, call.decision.source, call.decision.scope
        elif now < call.not_before:
            reason, source, scope = "redirected", "retry-after", "request"
        wall_until = call.setup.timebase.wall() + until - now
        name, attempts = call.origin.name, call.policy.max_attempts
        attempt = call.attempt + 1
        return WaitEvent(
            reason, until - now, until, wall_until, attempt, attempts, name, scope, source, call.call_id
        )

    def _end(self, now: float) -> None:
        if self._began is not None:
            self._call.waited_s += now - self._began
            self._began = None

    def _give_up(self, now: float, wait_s: float | None, why: Why) -> None:
        self._end(now)
        call = self._call
        call.leave()
        call.decision = GiveUp(why, wait_s)
        raise GaveUpWaiting
