"""The bytes of bodies that are being read: together with the queue's they have one bound.

Law of this file: what counts is what has arrived, not what was declared, so nobody takes room by words
alone; and whatever is counted is given back when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
        self.held_bytes = 0

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """The function to be told of each part of one body.

        It raises `NoRoom`.
        """
        mine = 0

        def arrived(part_bytes: int) -> None:
            nonlocal mine
            mine += part_bytes
            self.held_bytes += part_bytes
            if self.held_bytes + self._queued_bytes() > self._max_bytes:
                raise NoRoom

        try:
            yield arrived
        finally:
            self.held_bytes -= mine
