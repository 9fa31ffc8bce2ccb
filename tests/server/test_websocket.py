"""WebSockets: an inference session holds a lease, every other socket passes untouched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import websockets.asyncio.client
from websockets.exceptions import InvalidStatus

from tests.server.bed import Bed, Level, bed, until
from tests.serving import serving
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.telemetry.events import EventKind


class Sockets:
    """Echoes until either side closes; can be told to close, to deny or to fail."""

    def __init__(self) -> None:
        self.open = 0
        self.deny = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        message = await receive()
        assert message["type"] == "websocket.connect", "the app gets the very first message"
        if self.deny:
            await send({"type": "websocket.close", "code": 4000})
            return
        await send({"type": "websocket.accept"})
        self.open += 1
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                if message.get("text") == "fail":
                    raise RuntimeError("model fell over")
                await send({"type": "websocket.send", "text": message["text"]})
        finally:
            self.open -= 1


def url_of(http: str, path: str = "/v1/realtime") -> str:
    return http.replace("http://", "ws://") + path


async def test_a_session_holds_its_lease_until_it_closes() -> None:
    """Over a real socket; closing ends the lease."""
    async with bed(Sockets()) as b, serving(b.gate) as url:
        async with websockets.asyncio.client.connect(url_of(url)) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
            assert b.runtime.statistics().running == 1
        await until(lambda: b.runtime.statistics().running == 0)
        assert b.count(EventKind.ADMITTED) == b.count(EventKind.ENDED) == 1


async def test_a_session_waits_for_its_turn() -> None:
    """The handshake is held back until there is room; the messages come in order afterwards."""
    async with bed(Sockets(), Level(kv_usage=0.97)) as b, serving(b.gate) as url:
        opening = asyncio.ensure_future(_open(url_of(url)))
        await until(lambda: b.runtime.statistics().queued == 1)
        b.level.kv_usage = 0.0
        assert await opening == "hello"


async def _open(url: str) -> str | bytes:
    async with websockets.asyncio.client.connect(url, open_timeout=30) as socket:
        await socket.send("hello")
        return await socket.recv()


async def test_a_refusal_is_a_429_before_the_handshake() -> None:
    """With the headers of any refusal, where the server can send them."""
    tenants = [{"name": "t", "keys": ["k"], "requests_per_s": 0.01, "request_burst": 1}]
    headers = {"authorization": "Bearer k"}
    async with bed(Sockets(), tenants=tenants) as b, serving(b.gate) as url:
        async with websockets.asyncio.client.connect(url_of(url), additional_headers=headers):
            pass
        with pytest.raises(InvalidStatus) as caught:
            async with websockets.asyncio.client.connect(url_of(url), additional_headers=headers):
                pass
        assert caught.value.response.status_code == 429
        assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_without_the_denial_extension_the_socket_is_closed_with_1013() -> None:
    """ "Try again later", the code that the registry has for it."""
    async with bed(Sockets(), Level(kv_usage=0.97), classes=[{"name": "standard", "max_wait_s": 0.1}]) as b:
        sent = await drive(b, {"type": "websocket.connect"})
        assert sent == [{"type": "websocket.close", "code": 1013, "reason": "try again later"}]


async def test_who_gives_up_during_the_handshake_leaves_the_queue() -> None:
    """The app is never called."""
    async with bed(Sockets(), Level(kv_usage=0.97)) as b:
        incoming: asyncio.Queue[Message] = asyncio.Queue()
        incoming.put_nowait({"type": "websocket.connect"})
        task = asyncio.create_task(b.gate(scope(), incoming.get, ignore))
        await until(lambda: b.runtime.statistics().queued == 1)
        incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await task
        assert b.runtime.statistics().queued == 0
        assert b.count(EventKind.LEFT) == 1


async def test_an_app_that_denies_or_fails_frees_the_lease() -> None:
    """Whatever ends the session, ends it once."""
    app = Sockets()
    async with bed(app) as b:
        app.deny = True
        assert (await drive(b, {"type": "websocket.connect"}))[0]["code"] == 4000
        assert b.runtime.statistics().running == 0
        app.deny = False
        with pytest.raises(RuntimeError, match="fell over"):
            await drive(b, {"type": "websocket.connect"}, {"type": "websocket.receive", "text": "fail"})
        assert b.runtime.statistics().running == 0
        assert b.runtime.faults.count == 0


async def test_other_sockets_pass_at_any_level() -> None:
    """M7: neither counted nor queued."""
    async with bed(Sockets(), Level(kv_usage=0.97)) as b, serving(b.gate) as url:
        async with websockets.asyncio.client.connect(url_of(url, "/chat")) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
        assert b.runtime.statistics().admitted == 0


def scope() -> Scope:
    return {
        "type": "websocket",
        "path": "/v1/realtime",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "asgi": {"version": "3.0"},
    }


async def ignore(message: Message) -> None:
    """A send that nobody reads."""


async def drive(b: Bed, *messages: Any) -> list[Message]:
    """One socket driven by hand."""
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    for message in messages:
        incoming.put_nowait(message)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await b.gate(scope(), incoming.get, send)
    return sent
