"""One admitted request while it runs: what passes by is counted, nothing is held back.

Law of this file: the lease ends exactly once, at the earliest of the last message, the app's return
and its error; after a disconnect it ends when the app returns, since until then the engine works; a
background response's lease goes on to whoever sees its end. An error of ours in here is recorded and
the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import CoroutineType

from tidegate.asgi.arrival import Arrival
from tidegate.asgi.ask import Asked
from tidegate.asgi.background import Seen
from tidegate.asgi.identity import Caller
from tidegate.asgi.metering import MOST_BYTES, MOST_CHUNKS, Meter
from tidegate.asgi.opening import opening
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.telling import Telling
from tidegate.asgi.types import App, Message, Send
from tidegate.core.decisions import Admit, Ending

PROGRESS_INTERVAL_S = 0.05  # how often a stream's progress is told to the ledger
SETTLED_S = 1.0  # so long after its start a request has surely reached the engine
BLOCKED_AFTER_S = 1.0  # a send that takes longer than this has a reader too slow to drain
_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_BUSY = frozenset({429, 503})


class Exchange(Telling):
    """Runs the app under one lease and settles it."""

    __slots__ = (
        "_arrival",
        "_caller",
        "_has_body",
        "_has_ended",
        "_has_trailers",
        "_is_blocked",
        "_is_plain",
        "_is_socket",
        "_is_superseded",
        "_look_at",
        "_meter",
        "_send",
        "_sending",
        "_sent_at",
    )

    def __init__(
        self, around: Surroundings, arrival: Arrival, asked: Asked, admit: Admit, caller: Caller
    ) -> None:
        super().__init__(around, asked.ask, admit)
        self._arrival = arrival
        self._caller = caller
        self._send = arrival.send
        self._meter = Meter(arrival.route, asked, around.builder.reported, around.on_fault)
        self._is_socket = arrival.scope["type"] == "websocket"
        self._is_superseded = False
        self._is_plain = not self._is_socket  # whether chunks in the middle just pass
        self._look_at = self._started_at  # when the next chunk is worth more than being set aside
        self._has_trailers = self._has_ended = self._has_body = self._is_blocked = False
        self._sending: Awaitable[None] | None = None  # a coroutine shows by itself whether it has ended
        self._sent_at = 0.0
        watch = arrival.watch
        watch.on_gone = self._tell_gone
        if watch.is_gone:  # between the grant and now
            self._tell_gone()

    @property
    def owes_an_answer(self) -> bool:
        """Superseded before the app answered, and the caller is still there: it is to be told."""
        return self._is_superseded and not self._status and not self._arrival.watch.is_gone

    async def run(self, app: App) -> None:
        """Run the app to its end; its own exceptions pass through untouched."""
        arrival, ending = self._arrival, Ending.FAILED
        try:
            await app(arrival.scope, arrival.receive, self._passing())
            if arrival.watch.is_gone or self._is_superseded or self._is_socket:
                ending = Ending.ABANDONED
        except (OSError, asyncio.CancelledError):
            ending = Ending.ABANDONED  # the server's ways of saying that the caller has gone
            raise
        except Exception:
            if not self.owes_an_answer:  # else it is the app's way of hearing that it was superseded
                raise
        finally:
            if not self._has_ended:
                self._end(ending)

    def _passing(self) -> Send:
        """The app's `send`: look, then pass on to the server's own `send`.

        A chunk in the middle, which must cost next to nothing, is set aside, and now and then all that
        has been set aside is looked at. (A function of its own: it costs less than a method does.)
        """
        uncounted, clock, send = self._meter.uncounted, self._clock, self._send
        set_aside = uncounted.append

        def passing(message: Message) -> Awaitable[None]:
            if not message.get("more_body") or not self._is_plain:
                return self._send_rest(message)
            now = self._sent_at = clock()
            if chunk := message.get("body"):
                set_aside(chunk)
                if now >= self._look_at or len(uncounted) >= MOST_CHUNKS or len(chunk) >= MOST_BYTES:
                    self._look(now)
            sending = self._sending = send(message)
            return sending

        return passing

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
        if not self._has_ended and self._is_last(kind, message) and not self._arrival.watch.is_gone:
            self._end(self._whole())

    def cancel(self) -> None:
        """The work was superseded: the app hears that its caller has gone."""
        self._is_superseded = True
        self._is_plain = False
        self._arrival.watch.tell()

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
        status = self._status = int(message["status"])
        self._has_trailers = bool(message.get("trailers", False))
        if status in _BUSY:
            self._tell_busy()
        try:
            self._around.callers.observed(self._caller, status)
        except Exception as error:  # noqa: BLE001 - the answer goes on
            self._around.on_fault("status", error)
        return opening(
            message, self._around, self._ask.tenant, self._admit.waited_s, self._arrival.said.applied
        )

    def _on_first_byte(self, now: float) -> None:
        self._has_body = True
        self._tell_first_byte(now, self._meter.output_tokens)

    def _look(self, now: float) -> None:
        """Count what has been set aside, and tell the ledger how far the answer is."""
        if self._is_blocked:
            self._tell_blocked(False)
        if not self._has_body:
            self._on_first_byte(now)
        self._meter.count()
        if now >= self._look_at:
            self._look_at = now + PROGRESS_INTERVAL_S
            self._tell_progress(self._meter.output_tokens)

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
        self._has_ended = True
        reader = self._meter.response
        if reader is not None:
            self._meter.count()
            if reader.response_id is not None and 200 <= self._status < 300:
                seen = reader.seen()
                if seen.ending is None:
                    self._meter.drop()
                    self._around.background.hold(reader.response_id, self._end_background)
                    return
                ending = seen.ending
        self._settle(self._meter.settlement(ending), self._meter.output_tokens)

    def _end_background(self, seen: Seen) -> None:
        self._settle(self._meter.seen_later(seen), self._meter.output_tokens)

    def _tell_blocked(self, blocked: bool) -> None:
        self._is_blocked = blocked
        self._tell_sending(blocked=blocked)


async def _nothing() -> None:
    """The message goes nowhere."""
