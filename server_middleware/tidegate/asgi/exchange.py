"""One admitted request while it runs: what passes by is counted, nothing is held back.

Law of this file: the lease ends exactly once, at the earliest of the last body message, the app's
return and its error; after a disconnect it ends when the app returns, since until then the engine
works. An error of ours in here is recorded and the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.asgi.cors import expose
from tidegate.asgi.disconnect import DisconnectWatch
from tidegate.asgi.headers import server_timing
from tidegate.asgi.stream import OutputCounter
from tidegate.asgi.types import App, Message, Receive, Scope, Send
from tidegate.asgi.waiting import WaitingRoom
from tidegate.core.decisions import Admit, Ask, Ending, Settlement
from tidegate.telemetry.events import AdmissionEvent, EventKind, Hook

PROGRESS_INTERVAL_S = 0.05  # how often a stream's progress is told to the ledger
BLOCKED_AFTER_S = 1.0  # a send that takes longer than this has a reader too slow to drain


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an exchange needs of the middleware."""

    room: WaitingRoom
    clock: Callable[[], float]
    hook: Hook
    on_fault: Callable[[str, Exception], None]
    server_timing: bool


class Exchange:
    """Runs the app under one lease and settles it."""

    def __init__(
        self,
        around: Surroundings,
        ask: Ask,
        admit: Admit,
        counter: OutputCounter,
        watch: DisconnectWatch,
        send: Send,
        on_status: Callable[[int], None],
    ) -> None:
        self._around = around
        self._ask = ask
        self._admit = admit
        self._counter: OutputCounter | None = counter
        self._watch = watch
        self._send = send
        self._on_status = on_status
        self._started_at = around.clock()
        self._told_at = -1.0
        self._output_tokens = 0.0
        self._status = 0
        self._has_trailers = False
        self._has_ended = False
        self._has_body = False
        self._is_blocked = False
        self.sending_since: float | None = None
        watch.on_gone = self._on_gone

    @property
    def ticket(self) -> int:
        """The lease's ticket."""
        return self._admit.ticket

    async def run(self, app: App, scope: Scope, receive: Receive) -> None:
        """Run the app to its end; its own exceptions pass through untouched."""
        ending = Ending.FAILED
        try:
            await app(scope, receive, self.send)
            ending = Ending.ABANDONED if self._watch.is_gone else Ending.FAILED
        except (OSError, asyncio.CancelledError):
            ending = Ending.ABANDONED  # the server's ways of saying that the caller has gone
            raise
        finally:
            self._end(ending)
            self._watch.close()

    async def send(self, message: Message) -> None:
        """The app's `send`: pass on, then look."""
        kind = message["type"]
        if kind == "http.response.start":
            message = self._on_start(message)
        elif kind == "http.response.body":
            self._on_body(message)
        self.sending_since = self._around.clock()
        try:
            await self._send(message)
        finally:
            self.sending_since = None
            if self._is_blocked:
                self._tell_blocked(False)
        if self._is_last(kind, message) and not self._watch.is_gone:
            self._end(Ending.COMPLETED if 200 <= self._status < 300 else Ending.FAILED)

    def cancel(self) -> None:
        """The work was superseded: the app hears that its caller has gone."""
        self._watch.tell()

    def look_for_blocked_send(self, now: float) -> None:
        """Called now and then: a send that hangs on a slow reader strands nothing."""
        since = self.sending_since
        if since is not None and not self._is_blocked and now - since > BLOCKED_AFTER_S:
            self._tell_blocked(True)

    def _on_start(self, message: Message) -> Message:
        self._status = int(message["status"])
        self._has_trailers = bool(message.get("trailers", False))
        try:
            self._on_status(self._status)
        except Exception as error:  # noqa: BLE001 - the answer goes on
            self._around.on_fault("status", error)
        headers = expose(message.get("headers", ()))
        if self._around.server_timing:
            headers.append(server_timing(self._admit.waited_s))
        return {**message, "headers": headers}

    def _on_body(self, message: Message) -> None:
        chunk = message.get("body", b"")
        if self._counter is None or not chunk:
            return
        now = self._around.clock()
        if not self._has_body:
            self._has_body = True
            self._emit(EventKind.FIRST_BYTE, now)
        try:
            self._output_tokens = self._counter.feed(bytes(chunk))
            if now - self._told_at >= PROGRESS_INTERVAL_S:
                self._told_at = now
                self._around.room.gate.progress(self._admit.ticket, self._output_tokens, now)
        except Exception as error:  # noqa: BLE001 - the stream goes on without being counted
            self._counter = None
            self._around.on_fault("stream", error)

    def _is_last(self, kind: str, message: Message) -> bool:
        if kind == "http.response.body":
            return not message.get("more_body", False) and not self._has_trailers
        if kind == "http.response.trailers":
            return not message.get("more_trailers", False)
        return kind == "http.response.pathsend"

    def _end(self, ending: Ending) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        settlement = self._settlement(ending)
        self._around.room.release(self._admit.ticket, settlement)
        self._emit(EventKind.ENDED, self._around.clock(), settlement)

    def _settlement(self, ending: Ending) -> Settlement:
        prompt, output = self._usage()
        if output is None and ending is Ending.COMPLETED and self._output_tokens:
            output = round(self._output_tokens)
        return Settlement(ending=ending, prompt_tokens=prompt, output_tokens=output)

    def _usage(self) -> tuple[int | None, int | None]:
        """(prompt tokens, output tokens) as the engine reported them."""
        try:
            usage = self._counter.usage if self._counter is not None else None
        except Exception as error:  # noqa: BLE001 - the lease ends all the same
            self._around.on_fault("usage", error)
            usage = None
        return usage if usage is not None else (None, None)

    def _emit(self, kind: EventKind, now: float, settlement: Settlement | None = None) -> None:
        prompt = settlement.prompt_tokens if settlement else None
        output = settlement.output_tokens if settlement else None
        self._around.hook(
            AdmissionEvent(
                kind=kind,
                ticket=self._admit.ticket,
                tenant=self._ask.tenant,
                priority_class=self._ask.priority_class,
                instance=self._admit.instance,
                waited_s=self._admit.waited_s,
                duration_s=now - self._started_at,
                prompt_tokens=self._ask.prompt_tokens if prompt is None else prompt,
                output_tokens=self._output_tokens if output is None else output,
                status=self._status,
            )
        )

    def _on_gone(self) -> None:
        self._guarded(
            "caller_gone", lambda gate_now: self._around.room.gate.caller_gone(self.ticket, gate_now)
        )

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
