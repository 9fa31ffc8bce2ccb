"""From a request's arrival to its lease, or to the reason why there is none.

Law of this file: identity, then what can be decided without the body, then the body, its cost, the
offer, the wait. It raises every other way out (`CallerLeft`, `Denied`, `Bypass`) and answers nothing.
"""

from __future__ import annotations

from tidegate.asgi import unbooked
from tidegate.asgi.announcer import Announcer
from tidegate.asgi.arrival import Arrival, Bypass, CallerLeft, Denied
from tidegate.asgi.ask import Asked
from tidegate.asgi.body import Body, BodyTimeout
from tidegate.asgi.bytes_held import BytesHeld, NoRoom
from tidegate.asgi.examine import OFF_LOOP_BYTES
from tidegate.asgi.exchange import Exchange
from tidegate.asgi.fields import FieldProblem
from tidegate.asgi.identity import Caller
from tidegate.asgi.keys import CannotTell
from tidegate.asgi.manners import Manners
from tidegate.asgi.seats import Seats
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.types import content_length
from tidegate.core.decisions import Admit, Queued, Refuse
from tidegate.telemetry.events import EventKind

TOO_LARGE = "The request body is larger than {bytes} bytes (body.max_bytes)."
UNBOUNDED_S = 24 * 3600.0  # what a body may take that is not held up by us (shadow mode)
NO_KEY = "A valid API key is required: send it as 'Authorization: Bearer ...' or 'x-api-key'."


class Admission:
    """Takes arrivals through the gate."""

    def __init__(self, around: Surroundings, manners: Manners, announcer: Announcer) -> None:
        self._around = around
        self._room = around.room
        self._builder = around.builder
        self._manners = manners
        self._announcer = announcer
        self._seats = Seats(around, manners)
        self._bounds = manners.body
        self._bodies = BytesHeld(manners.max_held_bytes, self._room.queued_bytes, around.clock)
        self.is_draining = False

    async def ask_who(self, arrival: Arrival) -> None:
        """Have the provider of keys say who asks, where there is one.

        Raises:
            Denied, Bypass: it cannot say now, and only known callers may go on.
        """
        if self.is_draining:
            return  # refused without that
        try:
            arrival.caller = await self._around.callers.identify(arrival)
        except CannotTell:
            raise self._way_out(arrival, unbooked.keys_unavailable(self._around.uniform)) from None

    def at_the_door(self, arrival: Arrival) -> Caller:
        """What can be decided before the body is read: who asks, and whether it is turned away at once.

        Raises:
            Denied, Bypass: see there.
            Exception: a fault of ours.
        """
        if self.is_draining:
            raise self._way_out(arrival, unbooked.draining(self._around.uniform))
        caller = arrival.caller or self._around.callers.recognise(arrival)
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
            counted, timeout_s = (None, UNBOUNDED_S) if self._lets_pass else (held, self._bounds.timeout_s)
            length_bytes = content_length(arrival.lines)
            body = Body(arrival.watch.receive, length_bytes, self._bounds.max_bytes, counted)
            arrival.receive = body.receive  # whoever goes on to the app has all of it, whatever happens here
            waiting = body.begin()
            if waiting is not None:
                await body.finish(waiting, timeout_s=timeout_s, clock=self._around.clock)
            arrival.is_replayable = True
            asked = self._asked(arrival, caller, body)
            if asked is None:
                asked = await self._asked_off_loop(arrival, caller, body)
        except BodyTimeout as slow:
            raise self._bad_request(408, str(slow), arrival) from slow
        except NoRoom:
            raise self._way_out(arrival, unbooked.no_room(self._around.uniform)) from None
        except FieldProblem as problem:
            raise self._bad_request(400, str(problem), arrival, problem.param) from None
        finally:
            held.end()
        ask = asked.ask
        arrival.priority_class = ask.priority_class
        if self.is_draining:  # since it came to the door
            raise self._way_out(arrival, unbooked.draining(self._around.uniform))
        try:
            if ask.is_keyed:
                arrival.watch.start()  # superseding needs to know whether the caller is still there
            answer = self._room.offer(ask)
            if isinstance(answer, Queued):
                answer = await self._queued(arrival, asked, answer)
            if isinstance(answer, Refuse):
                raise self._way_out(arrival, answer)
            self._announcer.admitted(arrival, answer)
            return Exchange(self._around, arrival, asked, answer, caller)
        except (Denied, Bypass):
            raise  # it has left the gate already
        except BaseException:
            # A fault of ours, or this very task was cancelled: whatever was granted, nobody else knows of it.
            self._room.leave(ask.ticket)
            raise

    def _asked(self, arrival: Arrival, caller: Caller, body: Body) -> Asked | None:
        """What is asked for by a body (of a WebSocket, its first message).

        `None`: it is so large that it is to be looked at elsewhere.
        """
        if body.disconnected:
            raise CallerLeft
        rejects = self._bounds.oversize == "reject"
        if not body.complete and rejects and arrival.scope["type"] == "http":
            raise self._bad_request(413, TOO_LARGE.format(bytes=self._bounds.max_bytes), arrival)
        if body.complete and body.read_bytes > OFF_LOOP_BYTES:
            return None
        return self._builder.build(caller, arrival, body, changes=not self._lets_pass)

    async def _asked_off_loop(self, arrival: Arrival, caller: Caller, body: Body) -> Asked:
        changes = not self._lets_pass
        return await self._builder.build_off_loop(caller, arrival, body, changes=changes)

    async def _queued(self, arrival: Arrival, asked: Asked, seat: Queued) -> Admit | Refuse:
        position, wait_s = seat.position, seat.estimated_wait_s
        self._announcer.say(EventKind.QUEUED, arrival, position=position, estimated_wait_s=wait_s)
        if self._lets_pass:
            self._room.leave(asked.ask.ticket)
            self._announcer.say(EventKind.SHADOWED, arrival, reason="queued")
            raise Bypass
        return await self._seats.wait(arrival, asked)

    def _bad_request(self, status: int, text: str, arrival: Arrival, param: str | None = None) -> Exception:
        if self._lets_pass:
            self._announcer.say(EventKind.SHADOWED, arrival, reason="bad_request")
            return Bypass()
        return self._announcer.rejected(status, text, arrival, param)

    @property
    def _lets_pass(self) -> bool:
        """In shadow mode; or switched off since the request came to the door."""
        return self._manners.mode() != "enforce"

    def _way_out(self, arrival: Arrival, refuse: Refuse) -> Exception:
        """A refusal as the way out that the mode asks for."""
        if self._lets_pass:
            self._announcer.say(EventKind.SHADOWED, arrival, reason=refuse.reason.value)
            return Bypass()
        return self._announcer.denied(arrival, refuse)
