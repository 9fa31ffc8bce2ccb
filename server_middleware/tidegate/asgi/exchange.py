"""One admitted request while it runs: what passes by is counted, nothing is held back.

Law of this file: the lease ends exactly once, at the earliest of the last message, the app's return
and its error; after a disconnect it ends when the app returns, since until then the engine works; a
background response's lease goes on to whoever sees its end. An error of ours in here is recorded and
the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import CoroutineType

from tidegate.asgi.arrival import Arrival
from tidegate.asgi.ask import Asked
from tidegate.asgi.background import Seen
from tidegate.asgi.cors import expose
from tidegate.asgi.headers import quota_headers, server_timing
from tidegate.asgi.identity import Caller
from tidegate.asgi.metering import MOST_BYTES, MOST_CHUNKS, Meter
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.types import App, HeaderList, Message
from tidegate.core.decisions import Admit, Ending, Settlement
from tidegate.telemetry.events import AdmissionEvent, EventKind

PROGRESS_INTERVAL_S = 0.05  # how often a stream's progress is told to the ledger
SETTLED_S = 1.0  # so long after its start a request has surely reached the engine
BLOCKED_AFTER_S = 1.0  # a send that takes longer than this has a reader too slow to drain
_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_BUSY = frozenset({429, 503})
_ALLOW_ORIGIN = b"access-control-allow-origin"


class Exchange:
    """Runs the app under one lease and settles it."""

    def __init__(
        self, around: Surroundings, arrival: Arrival, asked: Asked, admit: Admit, caller: Caller
    ) -> None:
        self._around = around
        self._clock = around.clock
        self._asked = asked
        self._admit = admit
        self._caller = caller
        self._meter = Meter(arrival.route, asked, around.builder.reported, around.on_fault)
        self._is_socket = arrival.scope["type"] == "websocket"
        self._watch = arrival.watch
        self._send = arrival.send
        self._scope = arrival.scope
        self._said = arrival.said
        self._receive = arrival.receive
        self._started_at = around.clock()
        self._look_at = self._started_at  # when the next chunk is worth more than being set aside
        self._status = 0
        self._has_trailers = False
        self._has_ended = False
        self._has_body = False
        self._is_blocked = False
        self._is_superseded = False
        self._sending: Awaitable[None] | None = None  # a coroutine shows by itself whether it has ended
        self._sent_at = 0.0
        self._watch.on_gone = self._on_gone
        if self._watch.is_gone:  # between the grant and now
            self._on_gone()

    @property
    def ticket(self) -> int:
        """The lease's ticket."""
        return self._admit.ticket

    @property
    def owes_an_answer(self) -> bool:
        """Superseded before the app answered, and the caller is still there: it is to be told."""
        return self._is_superseded and not self._status and not self._watch.is_gone

    async def run(self, app: App) -> None:
        """Run the app to its end; its own exceptions pass through untouched."""
        ending = Ending.FAILED
        try:
            await app(self._scope, self._receive, self.send)
            if self._watch.is_gone or self._is_superseded or self._is_socket:
                ending = Ending.ABANDONED
        except (OSError, asyncio.CancelledError):
            ending = Ending.ABANDONED  # the server's ways of saying that the caller has gone
            raise
        except Exception:
            if not self.owes_an_answer:  # else it is the app's way of hearing that it was superseded
                raise
        finally:
            self._end(ending)

    def send(self, message: Message) -> Awaitable[None]:
        """The app's `send`: look, then pass on to the server's own `send`.

        For a chunk in the middle, which must cost next to nothing, it is set aside and now and then
        looked at.
        """
        if message["type"] != "http.response.body" or not message.get("more_body") or self._is_superseded:
            return self._send_rest(message)
        chunk = message.get("body")
        now = self._sent_at = self._clock()
        if chunk:
            uncounted = self._meter.uncounted
            uncounted.append(chunk)
            if now >= self._look_at or len(uncounted) >= MOST_CHUNKS or len(chunk) >= MOST_BYTES:
                self._look(now)
        sending = self._sending = self._send(message)
        return sending

    def _send_rest(self, message: Message) -> Awaitable[None]:
        """Everything but a chunk in the middle."""
        if self._is_superseded and not self._status:
            return _nothing()  # its caller is answered by us
        if message["type"] not in _STARTS:
            return self._send_looking(message)
        self._sent_at = self._clock()
        sending = self._sending = self._send(self._on_start(message))
        return sending

    async def _send_looking(self, message: Message) -> None:
        """What may be the last message."""
        kind = message["type"]
        now = self._sent_at = self._clock()
        if kind == "http.response.body" and (chunk := message.get("body")):
            self._meter.uncounted.append(chunk)
            if not self._has_body:
                self._on_first_byte(now)
            if message.get("more_body"):
                self._look(now)
        self._sending = self._send(message)
        try:
            await self._sending
        finally:
            if self._is_blocked:
                self._tell_blocked(False)
        if self._is_last(kind, message) and not self._watch.is_gone:
            self._end(self._whole())

    def cancel(self) -> None:
        """The work was superseded: the app hears that its caller has gone."""
        self._is_superseded = True
        self._watch.tell()

    def streams_through(self, instant: float) -> bool:
        """Whether its answer was under way at that instant and after it: the engine had it then."""
        is_stream = self._has_body and not self._is_socket and not self._has_ended
        return is_stream and self._started_at + SETTLED_S < instant < self._sent_at

    def look_for_blocked_send(self, now: float) -> None:
        """Called now and then: a send that hangs on a slow reader strands nothing."""
        sending = self._sending
        is_pending = isinstance(sending, CoroutineType) and sending.cr_frame is not None
        if is_pending and not self._is_blocked and now - self._sent_at > BLOCKED_AFTER_S:
            self._tell_blocked(True)
            self._look_at = now  # the next chunk shows that it no longer is

    def _on_start(self, message: Message) -> Message:
        self._status = int(message["status"])
        self._has_trailers = bool(message.get("trailers", False))
        if self._status in _BUSY:
            self._emit(EventKind.UPSTREAM_BUSY, self._around.clock())
        try:
            self._around.builder.observed(self._caller, self._status)
        except Exception as error:  # noqa: BLE001 - the answer goes on
            self._around.on_fault("status", error)
        headers: HeaderList = list(message.get("headers", ()))
        if any(len(name) == len(_ALLOW_ORIGIN) and name.lower() == _ALLOW_ORIGIN for name, _ in headers):
            headers = expose(headers)
        headers += self._said.applied
        options = self._around.reply
        if options.server_timing:
            headers.append(server_timing(self._admit.waited_s))
        if options.quota_on_admitted and all(name.lower() != b"ratelimit" for name, _ in headers):
            headers += self._quota_left(send_policy=options.expose_limits and options.send_policy)
        return {**message, "headers": headers}

    def _quota_left(self, *, send_policy: bool) -> HeaderList:
        try:
            left = self._around.room.gate.quota_left(self._asked.ask.tenant, self._clock())
            return quota_headers(left, send_policy=send_policy)
        except Exception as error:  # noqa: BLE001 - the answer goes on without them
            self._around.on_fault("quota_left", error)
            return []

    def _on_first_byte(self, now: float) -> None:
        self._has_body = True
        self._emit(EventKind.FIRST_BYTE, now)

    def _look(self, now: float) -> None:
        """Count what has been set aside, and tell the ledger how far the answer is."""
        if self._is_blocked:
            self._tell_blocked(False)
        if not self._has_body:
            self._on_first_byte(now)
        self._meter.count()
        if now >= self._look_at:
            self._look_at = now + PROGRESS_INTERVAL_S
            self._guarded("progress", self._tell_progress)

    def _tell_progress(self, now: float) -> None:
        self._around.room.gate.progress(self._admit.ticket, self._meter.output_tokens, now)

    def _is_last(self, kind: str, message: Message) -> bool:
        if kind in ("http.response.body", "websocket.http.response.body"):
            return not message.get("more_body", False) and not self._has_trailers
        if kind == "http.response.trailers":
            return not message.get("more_trailers", False)
        return kind in ("http.response.pathsend", "websocket.close")

    def _whole(self) -> Ending:
        """How a lease ends with the last message. The length of a session teaches nothing of answers."""
        if self._is_socket:
            return Ending.ABANDONED
        return Ending.COMPLETED if 200 <= self._status < 300 else Ending.FAILED

    def _end(self, ending: Ending) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        reader = self._meter.response
        if reader is not None:
            self._meter.count()
        if reader is not None and reader.response_id is not None and 200 <= self._status < 300:
            seen = reader.seen()
            if seen.ending is None:
                self._around.background.hold(reader.response_id, self._end_background)
                return
            ending = seen.ending
        self._settle(self._meter.settlement(ending))

    def _end_background(self, seen: Seen) -> None:
        self._settle(
            Settlement(
                ending=seen.ending or Ending.ABANDONED,
                prompt_tokens=seen.prompt_tokens,
                output_tokens=seen.output_tokens,
            )
        )

    def _settle(self, settlement: Settlement) -> None:
        self._around.room.release(self._admit.ticket, settlement)
        self._emit(EventKind.ENDED, self._around.clock(), settlement)

    def _emit(self, kind: EventKind, now: float, settlement: Settlement | None = None) -> None:
        if not self._around.hook.hears(kind):
            return
        ask = self._asked.ask
        prompt = settlement.prompt_tokens if settlement else None
        output = settlement.output_tokens if settlement else None
        self._around.hook(
            AdmissionEvent(
                kind=kind,
                ticket=self._admit.ticket,
                tenant=ask.tenant,
                priority_class=ask.priority_class,
                instance=self._admit.instance,
                waited_s=self._admit.waited_s,
                duration_s=now - self._started_at,
                prompt_tokens=ask.prompt_tokens if prompt is None else prompt,
                output_tokens=self._meter.output_tokens if output is None else output,
                status=self._status,
            )
        )

    def _on_gone(self) -> None:
        self._guarded("caller_gone", lambda now: self._around.room.gate.caller_gone(self.ticket, now))

    def _tell_blocked(self, blocked: bool) -> None:
        self._is_blocked = blocked
        self._guarded(
            "sending_blocked",
            lambda now: self._around.room.gate.sending_blocked(self.ticket, blocked, now),
        )

    def _guarded(self, where: str, operation: Callable[[float], None]) -> None:
        try:
            operation(self._around.clock())
        except Exception as error:  # noqa: BLE001 - the stream goes on
            self._around.on_fault(where, error)


async def _nothing() -> None:
    """The message goes nowhere."""
