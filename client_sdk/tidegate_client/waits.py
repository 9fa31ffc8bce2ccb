"""The ways to hear about waits: a callback, an async iterator, a snapshot.

Law: a listener never breaks a call: what it raises is logged and forgotten; and nothing here grows without
bound.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable

from .core.events import WaitEvent
from .forks import renew_in_children

OnWait = Callable[[WaitEvent], object]
"""Called when a call starts to wait and when its wait becomes longer. It must not block: it runs on the
loop. One that has a method `ended` is told there, by its `call_id`, when a call waits no more: it is sent,
gave up, or was cancelled.
"""

_log = logging.getLogger("tidegate_client")
_KEPT = 1000


def check_listener(listener: OnWait | None) -> None:
    """Refuse a listener that could not hear.

    Raises:
        TypeError: it cannot be called, or is a coroutine function, which nobody would await.
    """
    given: object = listener
    if given is None or (callable(given) and not is_async(given)):
        return
    way_out = "give a plain function; it may start a task, or be a WaitFeed that a task follows."
    raise TypeError(f"on_wait is {listener!r}: {way_out}")


def is_async(function: object) -> bool:
    """Whether a call of `function` has to be awaited, be it a function or an object with `__call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004  its kind matters, not that it is there
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def tell(listener: OnWait | None, event: WaitEvent) -> None:
    """Hand `event` to `listener`, if there is one."""
    if listener is None:
        return
    try:
        listener(event)
    except Exception:  # noqa: BLE001  whatever a listener does wrong, the call goes on
        _log.exception("an on_wait listener failed; the call goes on")


def tell_end(listener: OnWait | None, call_id: int) -> None:
    """Tell a `listener` that cares that the call waits no more."""
    ended = getattr(listener, "ended", None)
    if callable(ended):
        try:
            ended(call_id)
        except Exception:  # noqa: BLE001  as above
            _log.exception("an on_wait listener failed; the call goes on")


class WaitFeed:
    """A listener to iterate over: `async for event in feed`, or to look at: `feed.waiting(now)`.

    Each `async for` gets the events from its start on; one that does not keep up loses the oldest.
    """

    def __init__(self) -> None:
        self._latest: collections.OrderedDict[int, WaitEvent] = collections.OrderedDict()
        self._followers: list[_Follower] = []
        self._lock = threading.Lock()
        renew_in_children(self)

    def begin_anew(self) -> None:
        """In a forked child: its own calls wait for nothing yet, and its loops follow nothing."""
        self._lock = threading.Lock()
        self._latest = collections.OrderedDict()
        self._followers = []

    def __call__(self, event: WaitEvent) -> None:
        """Take an event; from any thread."""
        with self._lock:
            self._latest[event.call_id] = event
            self._latest.move_to_end(event.call_id)
            while len(self._latest) > _KEPT:
                self._latest.popitem(last=False)
            followers = list(self._followers)
        for follower in followers:
            follower.put(event)

    def ended(self, call_id: int) -> None:
        """Forget a call that waits no more; from any thread."""
        with self._lock:
            self._latest.pop(call_id, None)

    def waiting(self, now: float) -> list[WaitEvent]:
        """The latest event of every call that still waits at `now` (monotonic seconds), the first to go
        first.
        """
        with self._lock:
            events = [event for event in self._latest.values() if event.until > now]
        return sorted(events, key=lambda event: event.until)

    async def __aiter__(self) -> AsyncIterator[WaitEvent]:
        follower = _Follower()
        with self._lock:
            self._followers.append(follower)
        try:
            while True:
                yield await follower.get()
        finally:
            with self._lock:
                self._followers.remove(follower)


class _Follower:
    """The events one `async for` has not seen yet."""

    def __init__(self) -> None:
        self._events: collections.deque[WaitEvent] = collections.deque(maxlen=_KEPT)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def put(self, event: WaitEvent) -> None:
        self._events.append(event)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    async def get(self) -> WaitEvent:
        while not self._events:
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()
