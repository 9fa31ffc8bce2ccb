"""An HTTP server that answers, or does not, in whatever way a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Behaviour = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Listens on loopback; `requests` are the heads received, `open` the connections now open."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The metrics page."""
        return f"http://127.0.0.1:{self.port}/metrics"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the other side or the behaviour closes it."""
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(head)
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    await self.behaviour(head, writer)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a server for the length of a test."""
    server = Server(behaviour)
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(server.handle(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


def answer(body: bytes, *, status: str = "200 OK", headers: str = "") -> Behaviour:
    """Answer with a body of stated length."""

    async def behave(_: str, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return behave


def raw(text: bytes, *, then_close: bool = True) -> Behaviour:
    """Write exactly these bytes."""

    async def behave(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()
        if then_close:
            writer.close()

    return behave


async def hang(_: str, __: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def endless(_: str, writer: asyncio.StreamWriter) -> None:
    """Write lines for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    line = b"some_metric 1\n" * 1000
    while True:
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        await writer.drain()


async def dripping(_: str, writer: asyncio.StreamWriter) -> None:
    """Write a byte now and then, so that no single read is ever late."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\na\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
