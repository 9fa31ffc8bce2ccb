"""The simulated server's ASGI plumbing: bodies in, whole replies out, callers that leave.

Law of this file: nothing here knows what is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tidegate.asgi.types import Receive, Send
from tidegate.testing.engine_replies import error_body
from tidegate.testing.engine_requests import BadRequest

JSON = "application/json"


async def unless_gone(answer: Awaitable[None], receive: Receive) -> None:
    """Runs `answer`, and drops it when the caller disconnects first."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive) -> bytes | None:
    """The whole body, or None when the caller left before its end."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def send_whole(send: Send, status: int, content_type: str, body: bytes) -> None:
    """A response in one piece; no content type for an empty body."""
    headers = [(b"content-length", str(len(body)).encode())]
    if content_type:
        headers.append((b"content-type", content_type.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: BadRequest) -> None:
    """What the real server would say."""
    await send_whole(send, error.status, JSON, error_body(error))


async def lifespan(receive: Receive, send: Send) -> None:
    """Starts and stops with nothing to do."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
