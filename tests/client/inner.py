"""A transport inside the one under test: answers as told, and knows what became of the bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.client.stacks import Stack
from tidegate_client.testing import Board, FakeClock


class Inner:
    """A transport of either colour that answers with given responses and never reads a request by itself."""

    def __init__(self, stack: Stack, *answers: tuple[int, dict[str, str], list[bytes]]) -> None:
        self.stack = stack
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.streams: list[Stream] = []

    def handle_request(self, request: Any) -> Any:
        self.bodies.append(b"".join(request.stream))
        return self._response()

    async def handle_async_request(self, request: Any) -> Any:
        self.bodies.append(b"".join([chunk async for chunk in request.stream]))
        return self._response()

    def _response(self) -> Any:
        status, headers, chunks = self.answers.pop(0)
        kinds = (self.stack.library.SyncByteStream, self.stack.library.AsyncByteStream)
        stream = type("BothStream", (Stream, *kinds), {})(chunks)
        self.streams.append(stream)
        return self.stack.library.Response(status, headers=headers, stream=stream)


class Stream:
    """A response body that knows how far it was read and whether it was closed."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks, self.read, self.closed = chunks, 0, False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


REFUSED: tuple[int, dict[str, str], list[bytes]] = (
    429,
    {"retry-after": "1"},
    [b'{"error": {"reason": "full"}}'],
)


SERVED: tuple[int, dict[str, str], list[bytes]] = (200, {}, [b"o", b"k"])


async def send(stack: Stack, inner: Inner, **body: Any) -> Any:
    """POST `body` through our transport; returns the transport's response, unread."""
    transport = stack.wrap(inner, timebase=FakeClock(uniform=0.5), board=Board())
    request = stack.library.Request("POST", "http://engine/", **body)
    return (
        await transport.handle_async_request(request) if stack.is_async else transport.handle_request(request)
    )
