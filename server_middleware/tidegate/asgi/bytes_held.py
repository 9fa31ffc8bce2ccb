"""The bytes of bodies that are being read: together with the queue's they have one bound.

Law of this file: what counts is what has arrived, not what was declared, so nobody takes room by words
alone; and whatever is counted is given back when the reading ends. A few large bodies that trickle in may
fill the bound, but turn away only large ones: a small one takes no more than the server's own buffer of its
connection does. Among large ones those that have fallen silent give way to those that come.
"""

from __future__ import annotations

from collections.abc import Callable

SMALL_BYTES = 64 * 1024
SMALL_SHARE = 64  # or this part of the bound, where that is less
SILENT_S = 1.0  # so long without a part, a large body gives way where room is short


class NoRoom(Exception):
    """The bodies under way and in the queue have reached `queue.max_bytes`."""


class BytesHeld:
    """Counts the bytes of all bodies under way.

    Args:
        max_bytes: of these and of the queue's together.
        queued_bytes: what the queue holds now.
        clock: monotonic seconds.
    """

    def __init__(self, max_bytes: int, queued_bytes: Callable[[], int], clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._queued_bytes = queued_bytes
        self._clock = clock
        self._large: dict[OneBody, float] = {}  # and when each was last heard of, the longest silent first
        self.small_bytes = min(SMALL_BYTES, max_bytes // SMALL_SHARE)
        self.held_bytes = 0

    def body(self) -> OneBody:
        """One body that begins to be read; whoever asks for it must end it."""
        return OneBody(self)

    def heard_of(self, body: OneBody) -> None:
        """A part of a large body has come.

        Raises:
            NoRoom: it is too much for the bound, and nobody gives way.
        """
        now = self._clock()
        self.forget(body)
        self._large[body] = now
        if not self._is_over():
            return
        for other, heard_at in list(self._large.items()):
            if now - heard_at < SILENT_S:
                break
            if other.give_up is not None:
                other.end()
                other.give_up()
                if not self._is_over():
                    return
        raise NoRoom

    def forget(self, body: OneBody) -> None:
        """A large body is no longer read, or no longer the longest silent."""
        self._large.pop(body, None)

    def _is_over(self) -> bool:
        return self.held_bytes + self._queued_bytes() > self._max_bytes


class OneBody:
    """The part of one body in what is held."""

    __slots__ = ("_all", "_bytes", "give_up")

    def __init__(self, held: BytesHeld) -> None:
        self._all = held
        self._bytes = 0
        self.give_up: Callable[[], None] | None = None
        """Ends the waiting for its next part with `NoRoom`; set by whoever waits."""

    def arrived(self, part_bytes: int) -> None:
        """A part has come.

        Raises:
            NoRoom: it is too much for the bound, and the body is no small one.
        """
        self._bytes += part_bytes
        self._all.held_bytes += part_bytes
        if self._bytes > self._all.small_bytes:
            self._all.heard_of(self)

    def end(self) -> None:
        """The body is no longer being read; idempotent."""
        if self._bytes > self._all.small_bytes:
            self._all.forget(self)
        self._all.held_bytes -= self._bytes
        self._bytes = 0
