"""Real servers for the browser: any ASGI app on a free loopback port, in the test's own event loop.

Law of this file: a server that was started here has stopped when its block ends; who waits for it waits
for a condition, never for a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import uvicorn

PATIENCE_S = 60.0
"""How long a condition is waited for that must come: on a starved machine it comes late."""


class _Server(uvicorn.Server):
    """Leaves the signal handlers to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: Any, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Yields the base URL of `app`; `port` 0 takes a free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app, log_level="critical", interface="asgi3", timeout_graceful_shutdown=1, **options
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the server did not start")
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task
        listener.close()


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits until `holds()`.

    Raises:
        TimeoutError: it never did within `PATIENCE_S`.
    """

    async def watch() -> None:
        while True:
            now = holds()
            if await now if inspect.isawaitable(now) else now:
                return
            await asyncio.sleep(0.02)

    await asyncio.wait_for(watch(), PATIENCE_S)
