"""Beginning to await something, and learning at once whether there is anything to wait for.

Law of this file: whoever waits notices no difference: values, exceptions and cancellations pass through.
A request's body has usually come along with its headers; then no time limit need be set up for it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine that has run up to its first suspension; awaiting it goes on from there.

    Args:
        work: not yet begun; runs within the current task.

    Raises:
        Exception: what the coroutine raised before it was suspended.
    """

    result: T
    """Once it is done."""

    __slots__ = ("_waits_for", "_work", "is_done", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._waits_for: Any = None
        self.is_done = False
        """Whether there was nothing to wait for."""
        try:
            self._waits_for = work.send(None)
        except StopIteration as end:
            self.result, self.is_done = end.value, True

    def __await__(self) -> Generator[Any, Any, T]:
        if self.is_done:
            return self.result
        work, waits_for = self._work, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation travels inwards
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration as end:
            result: T = end.value
            return result
