"""An answer's body with something added: a word when it has ended, or what was read of it before.

Law: the bytes pass through untouched and unbuffered, and closing reaches the body underneath, whichever way
it comes.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from .library import Library


def counted(stream: Any, library: Library, ended: Callable[[], None]) -> Any:
    """`stream` in a wrapper of the same library that calls `ended` when it is closed."""
    return _kind(library.stream_bases)(stream, stream, (), ended)


def resumed(stream: Any, rest: Any, held: Sequence[bytes], library: Library) -> Any:
    """`stream`, of which `held` has been read and `rest` is the iterator that goes on, as if nothing had been
    read.
    """
    return _kind(library.stream_bases)(stream, rest, held, lambda: None)


class _Around:
    """Both colours at once, as a response is read in the colour of its client."""

    def __init__(self, stream: Any, rest: Any, held: Sequence[bytes], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._rest = rest
        self._held = held
        self._ended = ended

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        yield from self._rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._held:
            yield chunk
        async for chunk in self._rest:
            yield chunk

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._ended()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._ended()


@functools.cache
def _kind(bases: tuple[type[Any], ...]) -> Any:
    return type("StreamAround", (_Around, *bases), {})
