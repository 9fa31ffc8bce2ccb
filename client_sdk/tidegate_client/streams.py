"""An answer's body that tells when it has ended.

Law: the bytes pass through untouched and unbuffered; the end is told once it is closed, whichever way that
comes.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from .library import Library


def counted(stream: Any, library: Library, ended: Callable[[], None]) -> Any:
    """`stream` in a wrapper of the same library that calls `ended` when it is closed."""
    return _kind(library.stream_bases)(stream, ended)


class _Counted:
    """Both colours at once, as a response is read in the colour of its client."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
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
    return type("CountedStream", (_Counted, *bases), {})
