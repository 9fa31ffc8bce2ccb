"""One guarded request from its arrival to its end, whichever end that is.

Law of this file: whatever of ours raises on the way in is the fault policy's; whatever happens after
the app has been called is the exchange's. No request is answered with a 500 of ours, and in shadow mode
none is refused for a fault of ours: nothing but a body that was lost while it was read.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tidegate.asgi import unbooked
from tidegate.asgi.admission import NO_KEY, Admission
from tidegate.asgi.announcer import Announcer
from tidegate.asgi.arrival import Arrival, Bypass, CallerLeft, Denied
from tidegate.asgi.classify import Route
from tidegate.asgi.disconnect import DisconnectWatch
from tidegate.asgi.exchange import Exchange
from tidegate.asgi.faults import FaultPolicy
from tidegate.asgi.keys import CannotTell
from tidegate.asgi.manners import Manners
from tidegate.asgi.outcomes import GateFault, LetPass
from tidegate.asgi.said import said
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.types import App, Receive, Scope, Send
from tidegate.core.decisions import Reason, Refuse
from tidegate.telemetry.events import EventKind


class Door:
    """Lets guarded requests in, one by one."""

    def __init__(self, app: App, around: Surroundings, manners: Manners, faults: FaultPolicy) -> None:
        self._app = app
        self._around = around
        self._replier = manners.replier
        self._faults = faults
        self._mode = manners.mode
        self._announcer = Announcer(around, manners.replier)
        self._admission = Admission(around, manners, self._announcer)
        self._requires_key = around.callers.requires_key
        self._asks_about_keys = around.callers.asks_about_keys
        self._exchanges: dict[int, Exchange] = {}

    @property
    def is_draining(self) -> bool:
        """Whether everything new is refused since the server is stopping."""
        return self._admission.is_draining

    def drain(self) -> None:
        """Refuse everything new from now on."""
        self._admission.is_draining = True

    async def enter(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one guarded request."""
        watch = DisconnectWatch(receive)
        lines = self._around.callers.lines(scope)
        arrival = Arrival(scope, lines, route, watch, watch.receive, send, self._around.clock(), said(lines))
        try:
            if self._requires_key and not await self._has_key(arrival):
                return
            if self._mode() == "off":
                await self._app(arrival.scope, arrival.receive, arrival.send)
                return
            if self._faults.is_passing_through():
                await self._past_a_fault(arrival)
                return
            await self._admit(arrival)
            if arrival.kept is not None:
                await arrival.kept.close()
        except Exception:
            if arrival.kept is not None:
                await arrival.kept.close()
            raise
        finally:
            watch.close()

    async def _admit(self, arrival: Arrival) -> None:
        try:
            if self._asks_about_keys and arrival.caller is None:
                await self._admission.ask_who(arrival)
            caller = self._admission.at_the_door(arrival)
            exchange = await self._admission.admitted(arrival, caller)
        except CallerLeft:
            self._announcer.say(EventKind.LEFT, arrival)
        except (Bypass, LetPass):
            await self._app(arrival.scope, arrival.receive, arrival.send)
        except Denied as denied:
            await self._answer(arrival, denied)
        except Exception as error:
            if error is arrival.watch.failure:  # no fault of ours: it is for whoever wrapped `receive`
                raise
            self._record(error)
            await self._past_a_fault(arrival)
        else:
            self._exchanges[exchange.ticket] = exchange
            try:
                await exchange.run(self._app)
            finally:
                del self._exchanges[exchange.ticket]
            if exchange.owes_an_answer:
                await self._superseded(arrival, exchange.ticket)

    def cancel(self, ticket: int) -> None:
        """Running work was superseded by a later attempt of the same request."""
        exchange = self._exchanges.get(ticket)
        if exchange is not None:
            exchange.cancel()

    def look_for_blocked_sends(self, now: float) -> None:
        """Called about once a second."""
        for exchange in tuple(self._exchanges.values()):
            exchange.look_for_blocked_send(now)

    def streams_at(self, instant: float) -> int:
        """Answers that were under way in the engine at that instant, a moment ago."""
        return sum(exchange.streams_through(instant) for exchange in self._exchanges.values())

    async def _has_key(self, arrival: Arrival) -> bool:
        """Whether the caller may go on: a lock does not open because the gate is broken or switched off."""
        if self._mode() == "shadow":
            return True
        try:
            arrival.caller = await self._around.callers.identify(arrival)
        except CannotTell:
            refuse = unbooked.keys_unavailable(self._around.uniform)
            await self._answer(arrival, self._announcer.denied(arrival, refuse))
            return False
        except Exception as error:  # noqa: BLE001 - who cannot be told apart is not let in
            self._record(error)
            await self._answer(arrival, self._gate_fault(arrival))
            return False
        if arrival.caller is None:
            await self._answer(arrival, self._announcer.rejected(401, NO_KEY, arrival))
        return arrival.caller is not None

    def _superseded(self, arrival: Arrival, ticket: int) -> Awaitable[None]:
        refuse = Refuse(ticket=ticket, reason=Reason.SUPERSEDED, scope="request", retry_after_s=None)
        return self._answer(arrival, self._announcer.denied(arrival, refuse))

    def _answer(self, arrival: Arrival, denied: Denied) -> Awaitable[None]:
        if arrival.kept is not None and arrival.kept.has_started:
            return arrival.kept.fail(denied.reply.body)
        return self._replier.send(denied.reply, arrival.scope, arrival.send)

    def _record(self, error: Exception) -> None:
        if not isinstance(error, GateFault):
            self._faults.record("admission", error)
        elif not error.is_recorded:
            self._faults.record(str(error), error)

    async def _past_a_fault(self, arrival: Arrival) -> None:
        if arrival.is_replayable and self._mode() == "shadow":
            await self._app(arrival.scope, arrival.receive, arrival.send)
            return
        if not arrival.is_replayable or not self._faults.try_pass():
            await self._answer(arrival, self._gate_fault(arrival))
            return
        try:
            await self._app(arrival.scope, arrival.receive, arrival.send)
        finally:
            self._faults.passed()

    def _gate_fault(self, arrival: Arrival) -> Denied:
        return self._announcer.denied(arrival, unbooked.gate_fault(self._around.uniform))
