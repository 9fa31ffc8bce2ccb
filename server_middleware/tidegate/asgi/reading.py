"""The bytes of bodies that are being read: together with the queue's they have one bound.

Law of this file: what counts is what has arrived, not what was declared, so nobody takes room by words
alone; and whatever is counted is given back when the reading ends. A few large bodies that trickle in may
fill the bound, but turn away only large ones: a small one takes no more than the server's own buffer of its
connection does.
"""

from __future__ import annotations

from collections.abc import Callable

SMALL_BYTES = 64 * 1024
SMALL_SHARE = 64  # or this part of the bound, where that is less


class NoRoom(Exception):
    """The bodies under way and in the queue have reached `queue.max_bytes`."""


class BytesHeld:
    """Counts the bytes of all bodies under way.

    Args:
        max_bytes: of these and of the queue's together.
        queued_bytes: what the queue holds now.
    """

    def __init__(self, max_bytes: int, queued_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._queued_bytes = queued_bytes
        self.small_bytes = min(SMALL_BYTES, max_bytes // SMALL_SHARE)
        self.held_bytes = 0

    def body(self) -> OneBody:
        """One body that begins to be read; whoever asks for it must end it."""
        return OneBody(self)

    def is_over(self) -> bool:
        """Whether the bound is crossed."""
        return self.held_bytes + self._queued_bytes() > self._max_bytes


class OneBody:
    """The part of one body in what is held."""

    __slots__ = ("_all", "_bytes")

    def __init__(self, held: BytesHeld) -> None:
        self._all = held
        self._bytes = 0

    def arrived(self, part_bytes: int) -> None:
        """A part has come.

        Raises:
            NoRoom: it is too much for the bound, and the body is no small one.
        """
        self._bytes += part_bytes
        self._all.held_bytes += part_bytes
        if self._bytes > self._all.small_bytes and self._all.is_over():
            raise NoRoom

    def end(self) -> None:
        """The body is no longer being read; idempotent."""
        self._all.held_bytes -= self._bytes
        self._bytes = 0
