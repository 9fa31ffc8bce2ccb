"""One guarded request from its arrival to the app or to a refusal.

Law of this file: identity, then what can be decided without the body, then the body, its cost, the
offer, the wait. Whatever of ours raises on this way is the fault policy's; whatever happens after the
app has been called is the exchange's. No request is answered with a 500 of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidegate.asgi.ask import AskBuilder
from tidegate.asgi.body import BodyTimeout
from tidegate.asgi.classify import Route
from tidegate.asgi.disconnect import DisconnectWatch
from tidegate.asgi.exchange import Exchange, Surroundings
from tidegate.asgi.faults import FaultPolicy
from tidegate.asgi.fields import FieldProblem
from tidegate.asgi.replies import Replier, Reply
from tidegate.asgi.stream import OutputCounter
from tidegate.asgi.types import App, Receive, Scope, Send
from tidegate.asgi.waiting import GateFault, LetPass
from tidegate.core.decisions import Admit, Ask, Queued, Reason, Refuse
from tidegate.telemetry.events import AdmissionEvent, EventKind

FAULT_RETRY_AFTER_S = 5.0
DRAIN_RETRY_AFTER_S = 5.0
NO_KEY = "A valid API key is required: send it as 'Authorization: Bearer ...' or 'x-api-key'."


class CallerLeft(Exception):
    """The caller went away before it was admitted; nobody is there to be answered."""


class Denied(Exception):
    """The request is answered here, without the app."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Bypass(Exception):
    """Shadow mode: the request goes to the app although enforce would have held or refused it."""


@dataclass(slots=True)
class Arrival:
    """What is known of a request so far; `receive` is at any time what the app would be given."""

    scope: Scope
    route: Route
    watch: DisconnectWatch
    receive: Receive
    at: float
    tenant: str = ""
    priority_class: str = ""
    is_replayable: bool = True


class Door:
    """Lets guarded requests in, one by one."""

    def __init__(
        self,
        app: App,
        around: Surroundings,
        builder: AskBuilder,
        faults: FaultPolicy,
        replier: Replier,
        mode: Callable[[], str],
    ) -> None:
        self._app = app
        self._around = around
        self._room = around.room
        self._builder = builder
        self._faults = faults
        self._replier = replier
        self._mode = mode
        self._exchanges: dict[int, Exchange] = {}
        self.is_draining = False

    async def enter(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one guarded request."""
        if self._faults.is_passing_through():
            await self._app(scope, receive, send)
            return
        watch = DisconnectWatch(receive)
        arrival = Arrival(scope, route, watch, watch.receive, self._around.clock())
        try:
            exchange = await self._admitted(arrival, send)
        except CallerLeft:
            watch.close()
            self._say(EventKind.LEFT, arrival)
        except (Bypass, LetPass):
            await self._app(arrival.scope, arrival.receive, send)
        except Denied as denied:
            watch.close()
            await self._replier.send(denied.reply, scope, send)
        except Exception as error:  # noqa: BLE001 - the gate must never be the outage
            self._record(error)
            await self._past_a_fault(arrival, send)
        else:
            await self._run(exchange, arrival)

    def cancel(self, ticket: int) -> None:
        """Running work was superseded by a later attempt of the same request."""
        exchange = self._exchanges.get(ticket)
        if exchange is not None:
            exchange.cancel()

    def look_for_blocked_sends(self, now: float) -> None:
        """Called about once a second."""
        for exchange in tuple(self._exchanges.values()):
            exchange.look_for_blocked_send(now)

    async def _run(self, exchange: Exchange, arrival: Arrival) -> None:
        self._exchanges[exchange.ticket] = exchange
        try:
            await exchange.run(self._app, arrival.scope, arrival.receive)
        finally:
            del self._exchanges[exchange.ticket]

    async def _admitted(self, arrival: Arrival, send: Send) -> Exchange:
        """Everything of ours before the dispatch.

        Raises:
            CallerLeft, Denied, Bypass: see there.
            Exception: a fault of ours.
        """
        if self.is_draining:
            raise self._denied(arrival, _draining())
        scope, route = arrival.scope, arrival.route
        caller = self._builder.identify(scope)
        if caller is None:
            raise Denied(self._replier.bad_request(401, NO_KEY, scope, route))
        arrival.tenant, arrival.priority_class = caller.tenant, caller.priority_class
        if not self._builder.declares_retry(scope):
            self._settle(arrival, self._room.precheck(caller.tenant, caller.priority_class))
        arrival.is_replayable = False  # until the body is whole, a fault would lose a part of it
        try:
            body = await self._builder.read_body(scope, arrival.watch.receive)
        except BodyTimeout as slow:
            raise Denied(self._replier.bad_request(408, str(slow), scope, route)) from slow
        arrival.receive, arrival.is_replayable = body.receive, True
        if body.disconnected:
            raise CallerLeft
        try:
            ask, arrival.scope = await self._builder.build(self._room, caller, scope, route, body)
        except FieldProblem as problem:
            raise Denied(self._replier.bad_request(400, str(problem), scope, route, problem.param)) from None
        arrival.priority_class = ask.priority_class
        admit = await self._decide(arrival, ask)
        counter = OutputCounter(route, ask.sequences)
        seen = partial(self._builder.observed, caller)
        return Exchange(self._around, ask, admit, counter, arrival.watch, send, seen)

    async def _decide(self, arrival: Arrival, ask: Ask) -> Admit:
        if ask.is_keyed:
            arrival.watch.start()  # superseding needs to know whether the caller is still there
        decision = self._room.offer(ask)
        if isinstance(decision, Queued):
            self._say(EventKind.QUEUED, arrival, position=decision.position)
            if self._mode() == "shadow":
                self._room.leave(ask.ticket)
                self._say(EventKind.SHADOWED, arrival, reason="queued")
                raise Bypass
            answer = await self._wait(arrival, ask)
        else:
            answer = decision
        if isinstance(answer, Refuse):
            self._settle(arrival, answer)
            raise AssertionError("a refusal was settled")
        self._say(EventKind.ADMITTED, arrival, waited_s=answer.waited_s)
        return answer

    async def _wait(self, arrival: Arrival, ask: Ask) -> Admit | Refuse:
        waiting = asyncio.ensure_future(self._room.wait(ask.ticket))
        try:
            has_left = await arrival.watch.gone(waiting)
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        if has_left:
            waiting.cancel()
            raise CallerLeft
        return waiting.result()

    def _settle(self, arrival: Arrival, refuse: Refuse | None) -> None:
        """Turn a refusal into the way out that the mode asks for."""
        if refuse is None:
            return
        if self._mode() == "shadow":
            self._say(EventKind.SHADOWED, arrival, reason=refuse.reason.value)
            raise Bypass
        raise self._denied(arrival, refuse)

    def _denied(self, arrival: Arrival, refuse: Refuse) -> Denied:
        self._say(
            EventKind.REFUSED,
            arrival,
            reason=refuse.reason.value,
            waited_s=self._around.clock() - arrival.at,
            retry_after_s=refuse.retry_after_s,
        )
        return Denied(self._replier.refusal(refuse, arrival.scope, arrival.route))

    def _record(self, error: Exception) -> None:
        if not isinstance(error, GateFault):
            self._faults.record("admission", error)
        elif not error.is_recorded:
            self._faults.record(str(error), error)

    async def _past_a_fault(self, arrival: Arrival, send: Send) -> None:
        if not arrival.is_replayable or not self._faults.try_pass():
            refuse = Refuse(
                ticket=0, reason=Reason.GATE_FAULT, scope="model", retry_after_s=FAULT_RETRY_AFTER_S
            )
            await self._replier.send(self._denied(arrival, refuse).reply, arrival.scope, send)
            return
        try:
            await self._app(arrival.scope, arrival.receive, send)
        finally:
            self._faults.passed()

    def _say(
        self,
        kind: EventKind,
        arrival: Arrival,
        *,
        reason: str = "",
        position: int = 0,
        waited_s: float = 0.0,
        retry_after_s: float | None = None,
    ) -> None:
        self._around.hook(
            AdmissionEvent(
                kind=kind,
                tenant=arrival.tenant,
                priority_class=arrival.priority_class,
                reason=reason,
                position=position,
                waited_s=waited_s,
                retry_after_s=retry_after_s,
            )
        )


def _draining() -> Refuse:
    return Refuse(ticket=0, reason=Reason.DRAINING, scope="model", retry_after_s=DRAIN_RETRY_AFTER_S)
