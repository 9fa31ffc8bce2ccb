"""What is told of one running request: to the gate, and to whoever listens.

Law of this file: the lease is given back exactly once, by `_settle`. An error of ours in here is recorded
and the stream goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.asgi.surroundings import Surroundings
from tidegate.core.decisions import Admit, Ask, Settlement
from tidegate.telemetry.events import AdmissionEvent, EventKind


class Telling:
    """Speaks for one lease.

    Args:
        around: what of ours there is.
        ask, admit: what was asked for and what was granted.
    """

    __slots__ = ("_admit", "_around", "_ask", "_clock", "_started_at", "_status", "ticket")

    def __init__(self, around: Surroundings, ask: Ask, admit: Admit) -> None:
        self._around = around
        self._ask = ask
        self._admit = admit
        self._clock = around.clock
        self._started_at = around.clock()
        self._status = 0  # of the app's answer, once it has begun
        self.ticket = admit.ticket

    def _tell_first_byte(self, now: float, output_tokens: float) -> None:
        hook = self._around.hook
        hook.first_byte((self._ask.priority_class, now - self._started_at))
        if hook.hears(EventKind.FIRST_BYTE):
            self._tell(EventKind.FIRST_BYTE, now, self._ask.prompt_tokens, output_tokens)

    def _tell_busy(self) -> None:
        self._tell(EventKind.UPSTREAM_BUSY, self._clock(), self._ask.prompt_tokens, 0.0)

    def _tell_progress(self, output_tokens: float) -> None:
        self._guarded(
            "progress", lambda now: self._around.room.gate.progress(self.ticket, output_tokens, now)
        )

    def _tell_gone(self) -> None:
        self._guarded("caller_gone", lambda now: self._around.room.gate.caller_gone(self.ticket, now))

    def _tell_sending(self, *, blocked: bool) -> None:
        self._guarded(
            "sending_blocked",
            lambda now: self._around.room.gate.sending_blocked(self.ticket, blocked, now),
        )

    def _settle(self, settlement: Settlement, output_tokens: float) -> None:
        """Give the lease back.

        Args:
            settlement: what it cost.
            output_tokens: an estimate, for where the settlement has none.
        """
        self._around.room.release(self.ticket, settlement)
        now, ask, hook = self._clock(), self._ask, self._around.hook
        prompt = ask.prompt_tokens if settlement.prompt_tokens is None else settlement.prompt_tokens
        output = output_tokens if settlement.output_tokens is None else settlement.output_tokens
        hook.ended((ask.priority_class, self._status, now - self._started_at, prompt, output))
        if hook.hears(EventKind.ENDED):
            self._tell(EventKind.ENDED, now, prompt, output)

    def _tell(self, kind: EventKind, now: float, prompt_tokens: float, output_tokens: float) -> None:
        ask, admit = self._ask, self._admit
        self._around.hook(
            AdmissionEvent(
                kind=kind,
                ticket=self.ticket,
                tenant=ask.tenant,
                priority_class=ask.priority_class,
                instance=admit.instance,
                waited_s=admit.waited_s,
                duration_s=now - self._started_at,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                status=self._status,
            )
        )

    def _guarded(self, where: str, operation: Callable[[float], None]) -> None:
        try:
            operation(self._clock())
        except Exception as error:  # noqa: BLE001 - the stream goes on
            self._around.on_fault(where, error)
