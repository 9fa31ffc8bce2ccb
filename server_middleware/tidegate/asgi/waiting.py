"""The waiting room: where the gate's answers meet those who wait for them.

Law of this file: the core decides, this file waits. Every `Step` the gate returns is acted upon here
in full (futures woken, timer set, fresh reading asked for), and every ticket leaves by exactly one
door: granted, refused, or cancelled. A fault of the gate fails the waiters at once; none is left
hanging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tidegate.asgi import unbooked
from tidegate.asgi.outcomes import GateFault, LetPass
from tidegate.asgi.waiters import Alarm, Answer, Waiters
from tidegate.core.decisions import Admit, Ask, Ending, Queued, Refuse, Settlement, Step, Uniform
from tidegate.core.gate import Gate
from tidegate.core.options import GateOptions
from tidegate.core.reading import Reading
from tidegate.core.statistics import Statistics

RELEASE_AGAIN_S = 1.0  # after a fault

Clock = Callable[[], float]


class WaitingRoom:
    """Owns the gate and the futures of those who wait. Bound to the running loop; not thread-safe.

    Args:
        options: for the gate; kept so that a fresh gate can be made after a fault.
        clock: monotonic seconds.
        uniform: floats in [0, 1).
        want_reading: called when the gate asks for a fresh sample.
        on_cancel: called with the ticket of running work that was superseded.
        on_fault: called with (where, error) for an exception in a timer or a reading.
    """

    def __init__(
        self,
        options: GateOptions,
        *,
        clock: Clock,
        uniform: Uniform,
        want_reading: Callable[[], None] = lambda: None,
        on_cancel: Callable[[int], None] = lambda ticket: None,
        on_fault: Callable[[str, Exception], None] = lambda where, error: None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._uniform = uniform
        self._want_reading = want_reading
        self._on_cancel = on_cancel
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._waiters = Waiters()
        self._alarm = Alarm(clock, self._look_again)
        self._tickets = 0
        self.gate = Gate(options, clock())

    def next_ticket(self) -> int:
        """A number no other request of this room has."""
        self._tickets += 1
        return self._tickets

    def offer(self, ask: Ask) -> Admit | Queued | Refuse:
        """Decide now; the charge is made before this returns.

        Raises:
            GateFault: the gate raised; the ticket is not known to it any more.
        """
        try:
            step = self.gate.offer(ask, self._clock(), self._uniform)
        except Exception as error:
            self._forget(ask.ticket)
            raise GateFault("offer") from error
        if step.decision is None:
            raise GateFault("offer answered nothing")
        if isinstance(step.decision, Queued):
            self._waiters[ask.ticket] = self._loop.create_future()
        self._apply(step)
        return step.decision

    def precheck(self, tenant: str, priority_class: str) -> Refuse | None:
        """A refusal that is certain before the body is read, or `None`.

        Raises:
            GateFault: the gate raised.
        """
        try:
            return self.gate.precheck(tenant, priority_class, self._clock(), self._uniform)
        except Exception as error:
            raise GateFault("precheck") from error

    def estimate_prompt_tokens(self, tenant: str, model: str, ascii_bytes: int, other_bytes: int) -> float:
        """Tokens expected of a prompt of these bytes.

        Raises:
            GateFault: the gate raised.
        """
        try:
            return self.gate.estimate_prompt_tokens(tenant, model, ascii_bytes, other_bytes)
        except Exception as error:
            raise GateFault("estimate_prompt_tokens") from error

    def queued_bytes(self) -> int:
        """Body bytes held for those who wait."""
        return self.gate.queued_bytes

    def outlook(self, ticket: int) -> tuple[int, float | None] | None:
        """A waiting ticket's position and estimated wait in seconds; `None` when it does not wait.

        Raises:
            GateFault: the gate raised.
        """
        try:
            return self.gate.outlook(ticket, self._clock())
        except Exception as error:
            raise GateFault("outlook") from error

    def wait(self, ticket: int) -> Coroutine[Any, Any, Answer]:
        """Wait for a queued ticket; cancelled, it leaves the queue or gives its grant back.

        The answer that ends the wait may come before the wait has begun to run.

        Raises:
            GateFault: the gate raised while the request was waiting.
        """
        return self._waited(ticket, self._waiters[ticket])

    async def _waited(self, ticket: int, future: asyncio.Future[Answer]) -> Answer:
        try:
            return await future
        except asyncio.CancelledError:
            self.leave(ticket)
            raise
        finally:
            self._waiters.pop(ticket, None)

    def leave(self, ticket: int) -> None:
        """The caller of a queued ticket has gone (idempotent); a grant it just got is handed on."""
        self._waiters.pop(ticket, None)
        self._guarded("cancel", lambda now: self.gate.cancel(ticket, now, self._uniform))

    def release(self, ticket: int, settlement: Settlement) -> None:
        """A lease has ended (idempotent)."""
        try:
            step = self.gate.release(ticket, settlement, self._clock(), self._uniform)
        except Exception as error:  # noqa: BLE001 - the gate must never be the outage
            self._failed("release", error)
            self._loop.call_later(RELEASE_AGAIN_S, self._release_again, ticket)
            return
        self._apply(step)

    def _release_again(self, ticket: int) -> None:
        """A lease that was not given back would take room for ever; nothing is learnt of it."""
        abandoned = Settlement(ending=Ending.ABANDONED)
        self._guarded("release", lambda now: self.gate.release(ticket, abandoned, now, self._uniform))

    def observe(self, readings: Sequence[Reading]) -> None:
        """New readings have arrived."""
        self._guarded("observe", lambda now: self.gate.observe(readings, now, self._uniform))

    def probe_failed(self, instance: str | None) -> None:
        """A reading failed."""
        self._guarded("probe_failed", lambda now: self.gate.probe_failed(instance, now, self._uniform))

    def set_limits(self, options: GateOptions) -> None:
        """The limits of tenants in these options hold from now on; the others stand since the start."""
        self._options = options
        tenants, default_tenant = options.tenants, options.default_tenant
        self._guarded(
            "set_limits", lambda now: self.gate.set_limits(tenants, default_tenant, now, self._uniform)
        )

    def statistics(self) -> Statistics:
        """A frozen snapshot of the gate."""
        return self.gate.statistics(self._clock())

    def drain(self) -> None:
        """Refuse everyone who waits, at once, since the server is stopping."""
        told = [
            ticket
            for ticket in self._waiters
            if self._waiters.answer(unbooked.draining(self._uniform, ticket))
        ]
        self._empty(told)

    def reset(self) -> None:
        """Start with a fresh gate after a fault; those who wait are failed over to the fault policy."""
        self.gate = Gate(self._options, self._clock())
        self._fail_waiters("reset")

    def let_everyone_pass(self) -> None:
        """Wake everyone who waits with `LetPass`; their tickets leave the queue."""
        self._empty([ticket for ticket in self._waiters if self._waiters.fail(ticket, LetPass())])

    def _empty(self, told: Sequence[int]) -> None:
        """Take those off the queue who have been told otherwise.

        All have been told before the first of them leaves: else its leaving would start those behind it.
        Whoever was granted a moment ago is not among them and keeps its lease.
        """
        for ticket in told:
            self.leave(ticket)

    def _fail_waiters(self, where: str) -> None:
        """Wake everyone who waits with a fault, so that nobody hangs."""
        for ticket in self._waiters:
            self._waiters.fail(ticket, GateFault(where, is_recorded=True))

    def close(self) -> None:
        """Stop the timer."""
        self._alarm.set(None)

    def _guarded(self, where: str, operation: Callable[[float], Step]) -> None:
        try:
            step = operation(self._clock())
        except Exception as error:  # noqa: BLE001 - the gate must never be the outage
            self._failed(where, error)
            return
        self._apply(step)

    def _failed(self, where: str, error: Exception) -> None:
        self._on_fault(where, error)
        self._fail_waiters(where)

    def _apply(self, step: Step) -> None:
        _, grants, refusals, cancelled, wake_at, wants_reading = step
        if grants or refusals or cancelled:
            for grant in grants:
                self._wake(grant)
            for refusal in refusals:
                self._wake(refusal)
            for ticket in cancelled:
                self._on_cancel(ticket)
        if wants_reading:
            self._want_reading()
        self._alarm.set(wake_at)

    def _wake(self, answer: Answer) -> None:
        if not self._waiters.answer(answer) and isinstance(answer, Admit):
            # Granted to somebody who left in the same instant: hand the lease on.
            self._loop.call_soon(self.release, answer.ticket, Settlement(ending=Ending.ABANDONED))

    def _look_again(self) -> None:
        self._guarded("advance", lambda now: self.gate.advance(now, self._uniform))

    def _forget(self, ticket: int) -> None:
        try:
            self.gate.cancel(ticket, self._clock(), self._uniform)
        except Exception as error:  # noqa: BLE001 - the gate is broken; the fault policy knows
            self._on_fault("cancel", error)
