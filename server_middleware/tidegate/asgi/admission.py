"""From a request's arrival to its lease, or to the reason why there is none.

Law of this file: identity, then what can be decided without the body, then the body, its cost, the
offer, the wait. It raises every other way out (`CallerLeft`, `Denied`, `Bypass`) and answers nothing.
"""

from __future__ import annotations

from tidegate.asgi.arrival import Arrival, Bypass, CallerLeft, Denied
from tidegate.asgi.ask import Asked
from tidegate.asgi.body import Body, BodyTimeout
from tidegate.asgi.cost import OFF_LOOP_BYTES
from tidegate.asgi.exchange import Exchange
from tidegate.asgi.fields import FieldProblem
from tidegate.asgi.identity import Caller
from tidegate.asgi.keys import CannotTell
from tidegate.asgi.manners import Manners
from tidegate.asgi.reading import BytesHeld, NoRoom
from tidegate.asgi.replies import Reply, problem_reason
from tidegate.asgi.seats import Seats
from tidegate.asgi.surroundings import Surroundings
from tidegate.core.decisions import Admit, Queued, Reason, Refuse
from tidegate.telemetry.events import AdmissionEvent, EventKind

TOO_LARGE = "The request body is larger than {bytes} bytes (body.max_bytes)."
KEYS_RETRY_S = 1.0  # and at random up to twice that
NO_KEY = "A valid API key is required: send it as 'Authorization: Bearer ...' or 'x-api-key'."


class Admission:
    """Takes arrivals through the gate."""

    def __init__(self, around: Surroundings, manners: Manners) -> None:
        self._around = around
        self._room = around.room
        self._builder = around.builder
        self._manners = manners
        self._replier = manners.replier
        self._seats = Seats(around, manners)
        self._bodies = BytesHeld(manners.max_body_bytes, self._room.queued_bytes, around.clock)
        self.is_draining = False

    async def ask_who(self, arrival: Arrival) -> None:
        """Have the provider of keys say who asks, where there is one.

        Raises:
            Denied, Bypass: it cannot say now, and only known callers may go on.
        """
        if self.is_draining:
            return  # refused without that
        try:
            arrival.caller = await self._builder.identify(arrival)
        except CannotTell:
            raise self._way_out(arrival, self.untold()) from None

    def at_the_door(self, arrival: Arrival) -> Caller:
        """What can be decided before the body is read: who asks, and whether it is turned away at once.

        Raises:
            Denied, Bypass: see there.
            Exception: a fault of ours.
        """
        if self.is_draining:
            raise self._way_out(arrival, self._room.draining())
        caller = arrival.caller or self._builder.recognise(arrival)
        if caller is None:
            raise self._bad_request(401, NO_KEY, arrival)
        arrival.tenant, arrival.priority_class = caller.tenant, caller.priority_class
        if not arrival.said.was_here_before:
            refuse = self._room.precheck(caller.tenant, caller.priority_class)
            if refuse is not None:
                raise self._way_out(arrival, refuse)
        return caller

    async def admitted(self, arrival: Arrival, caller: Caller) -> Exchange:
        """Everything else of ours before the dispatch.

        Raises:
            CallerLeft, Denied, Bypass: see there.
            Exception: a fault of ours.
        """
        held = self._bodies.body()
        arrival.is_replayable = False  # until the body is whole, a fault would lose a part of it
        try:
            counted = None if self._is_shadow else held
            body, waiting = self._builder.begin_body(arrival, counted)
            if waiting is not None:
                await self._builder.finish_body(body, waiting, counted)
            arrival.receive, arrival.is_replayable = body.receive, True
            asked = self._asked(arrival, caller, body)
            if asked is None:
                asked = await self._asked_off_loop(arrival, caller, body)
        except BodyTimeout as slow:
            raise self._bad_request(408, str(slow), arrival) from slow
        except NoRoom:
            raise self.denied(arrival, self._no_room()) from None
        except FieldProblem as problem:
            raise self._bad_request(400, str(problem), arrival, problem.param) from None
        finally:
            held.end()
        ask = asked.ask
        arrival.priority_class = ask.priority_class
        try:
            if ask.is_keyed:
                arrival.watch.start()  # superseding needs to know whether the caller is still there
            answer = self._room.offer(ask)
            if isinstance(answer, Queued):
                answer = await self._queued(arrival, asked, answer)
            if isinstance(answer, Refuse):
                raise self._way_out(arrival, answer)
            self._say_admitted(arrival, answer)
            return Exchange(self._around, arrival, asked, answer, caller)
        except (Denied, Bypass):
            raise  # it has left the gate already
        except BaseException:
            # A fault of ours, or this very task was cancelled: whatever was granted, nobody else knows of it.
            self._room.leave(ask.ticket)
            raise

    def denied(self, arrival: Arrival, refuse: Refuse) -> Denied:
        """A refusal, counted and put into words."""
        reply = self._replier.refusal(refuse, arrival.scope, arrival.route)
        waited_s = self._around.clock() - arrival.at
        reason = refuse.reason._value_  # on Python 3.11 `value` takes a call of its own
        self._say_refused(arrival, reason, reply, waited_s, refuse.retry_after_s)
        return Denied(reply)

    def untold(self) -> Refuse:
        """What a caller is told whose key cannot be checked now."""
        wait_s = KEYS_RETRY_S * (1 + self._room.chance())
        return Refuse(ticket=0, reason=Reason.KEYS_UNAVAILABLE, scope="request", retry_after_s=wait_s)

    def rejected(self, status: int, text: str, arrival: Arrival, param: str | None = None) -> Denied:
        """A request that is wrong by itself, counted and put into words."""
        reply = self._replier.bad_request(status, text, arrival.scope, arrival.route, param)
        self._say_refused(arrival, problem_reason(status), reply)
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
    ) -> None:
        """Emit an event about this arrival."""
        if not self._around.hook.hears(kind):
            return
        self._around.hook(
            AdmissionEvent(
                kind=kind,
                tenant=arrival.tenant,
                priority_class=arrival.priority_class,
                reason=reason,
                position=position,
                estimated_wait_s=estimated_wait_s,
                waited_s=waited_s,
            )
        )

    def _say_refused(
        self,
        arrival: Arrival,
        reason: str,
        reply: Reply,
        waited_s: float = 0.0,
        retry_after_s: float | None = None,
    ) -> None:
        tenant, priority_class, hook = arrival.tenant, arrival.priority_class, self._around.hook
        hook.refused((tenant, priority_class, reason, waited_s, retry_after_s, reply.request_id))
        if hook.hears(EventKind.REFUSED):
            hook(
                AdmissionEvent(
                    kind=EventKind.REFUSED,
                    tenant=tenant,
                    priority_class=priority_class,
                    reason=reason,
                    waited_s=waited_s,
                    retry_after_s=retry_after_s,
                    request_id=reply.request_id,
                )
            )

    def _say_admitted(self, arrival: Arrival, admit: Admit) -> None:
        self._around.hook.admitted((arrival.priority_class, admit.waited_s))
        self.say(EventKind.ADMITTED, arrival, waited_s=admit.waited_s)

    def _asked(self, arrival: Arrival, caller: Caller, body: Body) -> Asked | None:
        """What is asked for by a body (of a WebSocket, its first message).

        `None`: it is so large that it is to be looked at elsewhere.
        """
        if body.disconnected:
            raise CallerLeft
        if not body.complete and self._builder.rejects_oversize and arrival.scope["type"] == "http":
            raise self._bad_request(413, TOO_LARGE.format(bytes=self._builder.max_body_bytes), arrival)
        if body.complete and body.read_bytes > OFF_LOOP_BYTES:
            return None
        return self._builder.build(self._room, caller, arrival, body, changes=not self._is_shadow)

    async def _asked_off_loop(self, arrival: Arrival, caller: Caller, body: Body) -> Asked:
        changes = not self._is_shadow
        return await self._builder.build_off_loop(self._room, caller, arrival, body, changes=changes)

    async def _queued(self, arrival: Arrival, asked: Asked, seat: Queued) -> Admit | Refuse:
        self.say(EventKind.QUEUED, arrival, position=seat.position, estimated_wait_s=seat.estimated_wait_s)
        if self._is_shadow:
            self._room.leave(asked.ask.ticket)
            self.say(EventKind.SHADOWED, arrival, reason="queued")
            raise Bypass
        return await self._seats.wait(arrival, asked)

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

    def _way_out(self, arrival: Arrival, refuse: Refuse) -> Exception:
        """A refusal as the way out that the mode asks for."""
        if self._is_shadow:
            self.say(EventKind.SHADOWED, arrival, reason=refuse.reason.value)
            return Bypass()
        return self.denied(arrival, refuse)
