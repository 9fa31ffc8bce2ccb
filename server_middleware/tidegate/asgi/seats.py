"""One request that waits in the queue: until it may start, must go, or its caller has left.

Law of this file: whichever comes first ends the waiting, and nothing of it goes on in the background;
a comment that is being sent is whole before the app sends anything.
"""

from __future__ import annotations

import asyncio

from tidegate.asgi.arrival import Arrival, CallerLeft
from tidegate.asgi.ask import Asked
from tidegate.asgi.keepalive import KeptStream
from tidegate.asgi.manners import Manners
from tidegate.asgi.surroundings import Surroundings
from tidegate.core.decisions import Admit, Refuse


class Seats:
    """Where queued requests of one middleware wait."""

    def __init__(self, around: Surroundings, manners: Manners) -> None:
        self._around = around
        self._manners = manners

    async def wait(self, arrival: Arrival, asked: Asked) -> Admit | Refuse:
        """Wait for the gate's answer, and tell the caller meanwhile where it stands, if so configured.

        Raises:
            CallerLeft: the caller has gone.
            GateFault, LetPass: see `WaitingRoom`.
        """
        waiting = asyncio.ensure_future(self._around.room.wait(asked.ask.ticket))
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
            while not waiting.done() and (outlook := self._around.room.outlook(ticket)) is not None:
                await kept.tell(*outlook)
                await asyncio.wait({waiting}, timeout=options.interval_s)
        except OSError:
            pass  # the caller has gone; the watch sees that too
        except Exception as error:  # noqa: BLE001 - the request waits on in silence
            self._around.on_fault("keepalive", error)
