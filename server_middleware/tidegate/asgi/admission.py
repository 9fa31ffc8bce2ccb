"""From a request's arrival to its lease, or to the reason why there is none.

Law of this file: identity, then what can be decided without the body, then the body, its cost, the
offer, the wait. It raises every other way out (`CallerLeft`, `Denied`, `Bypass`) and answers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.asgi.arrival import Arrival, Bypass, CallerLeft, Denied
from tidegate.asgi.ask import Asked
from tidegate.asgi.body import Body, BodyTimeout
from tidegate.asgi.cost import OFF_LOOP_BYTES
from tidegate.asgi.exchange import Exchange
from tidegate.asgi.fields import FieldProblem
from tidegate.asgi.identity import Caller
from tidegate.asgi.keepalive import KeepAliveOptions, KeptStream
from tidegate.asgi.keys import CannotTell
from tidegate.asgi.reading import BytesHeld, NoRoom
from tidegate.asgi.replies import Replier, problem_reason
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.types import HeaderList, Scope
from tidegate.core.decisions import Admit, Ask, Queued, Reason, Refuse
from tidegate.telemetry.events import AdmissionEvent, EventKind

TOO_LARGE = "The request body is larger than {bytes} bytes (body.max_bytes)."
KEYS_RETRY_S = 1.0  # and at random up to twice that
NO_KEY = "A valid API key is required: send it as 'Authorization: Bearer ...' or 'x-api-key'."


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How the gate behaves towards callers.

    Args:
        replier: words refusals.
        keepalive: of streams in the queue.
        stream_headers: further headers of a stream that is started before the app was asked.
        mode: the mode in force.
        max_body_bytes: of all bodies that are being read or wait.
    """

    replier: Replier
    keepalive: KeepAliveOptions
    stream_headers: Callable[[Scope], HeaderList]
    mode: Callable[[], str]
    max_body_bytes: int


class Admission:
    """Takes arrivals through the gate."""

    def __init__(self, around: Surroundings, manners: Manners) -> None:
        self._around = around
        self._room = around.room
        self._builder = around.builder
        self._manners = manners
        self._replier = manners.replier
        self._bodies = BytesHeld(manners.max_body_bytes, self._room.queued_bytes)
        self.is_draining = False

    async def admitted(self, arrival: Arrival) -> Exchange:
        """Everything of ours before the dispatch.

        Raises:
            CallerLeft, Denied, Bypass: see there.
            Exception: a fault of ours.
        """
        if self.is_draining:
            raise self._way_out(arrival, self._room.draining())
        try:
            caller = arrival.caller or await self._builder.identify(arrival.scope)
        except CannotTell:
            raise self._way_out(arrival, self.untold()) from None
        if caller is None:
            raise self._bad_request(401, NO_KEY, arrival)
        arrival.tenant, arrival.priority_class = caller.tenant, caller.priority_class
        if not arrival.said.was_here_before:
            self._settle(arrival, self._room.precheck(caller.tenant, caller.priority_class))
        held = self._bodies.body()
        try:
            asked = await self._asked(arrival, caller, held.arrived)
        finally:
            held.end()
        arrival.priority_class = asked.ask.priority_class
        try:
            admit = await self._decide(arrival, asked)
            return Exchange(self._around, arrival, asked, admit, caller)
        except (Denied, Bypass):
            raise  # it has left the gate already
        except BaseException:
            # A fault of ours, or this very task was cancelled: whatever was granted, nobody else knows of it.
            self._room.leave(asked.ask.ticket)
            raise

    def denied(self, arrival: Arrival, refuse: Refuse) -> Denied:
        """A refusal, counted and put into words."""
        reply = self._replier.refusal(refuse, arrival.scope, arrival.route)
        self.say(
            EventKind.REFUSED,
            arrival,
            reason=refuse.reason.value,
            waited_s=self._around.clock() - arrival.at,
            retry_after_s=refuse.retry_after_s,
            request_id=reply.request_id,
        )
        return Denied(reply)

    def untold(self) -> Refuse:
        """What a caller is told whose key cannot be checked now."""
        wait_s = KEYS_RETRY_S * (1 + self._room.chance())
        return Refuse(ticket=0, reason=Reason.KEYS_UNAVAILABLE, scope="request", retry_after_s=wait_s)

    def rejected(self, status: int, text: str, arrival: Arrival, param: str | None = None) -> Denied:
        """A request that is wrong by itself, counted and put into words."""
        reply = self._replier.bad_request(status, text, arrival.scope, arrival.route, param)
        self.say(EventKind.REFUSED, arrival, reason=problem_reason(status), request_id=reply.request_id)
        return Denied(reply)

    def say(
        self,
        kind: EventKind,
        arrival: Arrival,
        *,
        reason: str = "",
        position: int = 0,
        estimated_wait_s: float | None = None,
        waited_s: float = 0.0,
        retry_after_s: float | None = None,
        request_id: str = "",
    ) -> None:
        """Emit an event about this arrival."""
        self._around.hook(
            AdmissionEvent(
                kind=kind,
                tenant=arrival.tenant,
                priority_class=arrival.priority_class,
                reason=reason,
                position=position,
                estimated_wait_s=estimated_wait_s,
                waited_s=waited_s,
                retry_after_s=retry_after_s,
                request_id=request_id,
            )
        )

    async def _asked(self, arrival: Arrival, caller: Caller, arrived: Callable[[int], None]) -> Asked:
        body = await self._read_body(arrival, arrived)
        if not body.complete and self._builder.rejects_oversize and arrival.scope["type"] == "http":
            raise self._bad_request(413, TOO_LARGE.format(bytes=self._builder.max_body_bytes), arrival)
        changes = not self._is_shadow
        try:
            if body.complete and body.read_bytes <= OFF_LOOP_BYTES:
                return self._builder.build(self._room, caller, arrival, body, changes=changes)
            return await self._builder.build_off_loop(self._room, caller, arrival, body, changes=changes)
        except FieldProblem as problem:
            raise self._bad_request(400, str(problem), arrival, problem.param) from None

    async def _read_body(self, arrival: Arrival, arrived: Callable[[int], None]) -> Body:
        """The body; of a WebSocket, its first message."""
        arrival.is_replayable = False  # until the body is whole, a fault would lose a part of it
        try:
            body = await self._builder.read_body(arrival, None if self._is_shadow else arrived)
        except BodyTimeout as slow:
            raise self._bad_request(408, str(slow), arrival) from slow
        except NoRoom:
            raise self.denied(arrival, self._no_room()) from None
        arrival.receive, arrival.is_replayable = body.receive, True
        if body.disconnected:
            raise CallerLeft
        return body

    async def _decide(self, arrival: Arrival, asked: Asked) -> Admit:
        ask = asked.ask
        if ask.is_keyed:
            arrival.watch.start()  # superseding needs to know whether the caller is still there
        decision = self._room.offer(ask)
        if isinstance(decision, Queued):
            self.say(
                EventKind.QUEUED,
                arrival,
                position=decision.position,
                estimated_wait_s=decision.estimated_wait_s,
            )
            self._bypass_in_shadow(arrival, ask)
            answer = await self._wait(arrival, asked)
        else:
            answer = decision
        if isinstance(answer, Refuse):
            raise self._way_out(arrival, answer)
        if self._around.hook.hears(EventKind.ADMITTED):
            self.say(EventKind.ADMITTED, arrival, waited_s=answer.waited_s)
        return answer

    def _no_room(self) -> Refuse:
        return Refuse(
            ticket=0,
            reason=Reason.QUEUE_FULL,
            scope="model",
            retry_after_s=self._room.unbooked_wait_s(),
        )

    def _bad_request(self, status: int, text: str, arrival: Arrival, param: str | None = None) -> Exception:
        if self._is_shadow:
            self.say(EventKind.SHADOWED, arrival, reason="bad_request")
            return Bypass()
        return self.rejected(status, text, arrival, param)

    @property
    def _is_shadow(self) -> bool:
        return self._manners.mode() == "shadow"

    def _bypass_in_shadow(self, arrival: Arrival, ask: Ask) -> None:
        if self._is_shadow:
            self._room.leave(ask.ticket)
            self.say(EventKind.SHADOWED, arrival, reason="queued")
            raise Bypass

    async def _wait(self, arrival: Arrival, asked: Asked) -> Admit | Refuse:
        waiting = asyncio.ensure_future(self._room.wait(asked.ask.ticket))
        telling = self._keep_alive(arrival, asked, waiting)
        try:
            # The queue has been charged for a body of that size, read or not.
            has_left = await arrival.watch.gone(waiting, asked.ask.body_bytes)
            if has_left:
                raise CallerLeft
            if telling is not None:
                await telling  # what it is sending now must be whole before the app sends
            return waiting.result()
        except BaseException:
            waiting.cancel()
            if telling is not None:
                telling.cancel()
            raise

    def _keep_alive(
        self, arrival: Arrival, asked: Asked, waiting: asyncio.Future[Admit | Refuse]
    ) -> asyncio.Task[None] | None:
        if self._manners.keepalive.after_s is None or not asked.streams_events:
            return None
        kept = KeptStream(arrival.send, arrival.route.dialect, self._manners.stream_headers(arrival.scope))
        arrival.kept, arrival.send = kept, kept.send
        return asyncio.ensure_future(self._tell(kept, asked.ask.ticket, waiting))

    async def _tell(self, kept: KeptStream, ticket: int, waiting: asyncio.Future[Admit | Refuse]) -> None:
        options = self._manners.keepalive
        try:
            await asyncio.wait({waiting}, timeout=options.after_s)
            while not waiting.done() and (outlook := self._room.outlook(ticket)) is not None:
                await kept.tell(*outlook)
                await asyncio.wait({waiting}, timeout=options.interval_s)
        except OSError:
            pass  # the caller has gone; the watch sees that too
        except Exception as error:  # noqa: BLE001 - the request waits on in silence
            self._around.on_fault("keepalive", error)

    def _settle(self, arrival: Arrival, refuse: Refuse | None) -> None:
        if refuse is not None:
            raise self._way_out(arrival, refuse)

    def _way_out(self, arrival: Arrival, refuse: Refuse) -> Exception:
        """A refusal as the way out that the mode asks for."""
        if self._is_shadow:
            self.say(EventKind.SHADOWED, arrival, reason=refuse.reason.value)
            return Bypass()
        return self.denied(arrival, refuse)
