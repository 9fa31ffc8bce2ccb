"""A gated app under test: real middleware, a scripted level, an app whose work the test steers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.asgi.types import Message, Receive, Scope, Send
from tidegate.telemetry.events import AdmissionEvent, EventKind

PATH = "/v1/completions"


class App:
    """An app that answers after the test says so (or at once), and counts what it sees."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.running = 0
        self.started = 0
        self.bodies: list[bytes] = []
        self.saw_disconnect = 0
        self.status = 200
        self.error: Exception | None = None
        self.chunks = [b'{"usage": {"prompt_tokens": 3, "completion_tokens": 2}}']

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        self.started += 1
        self.running += 1
        try:
            await self._answer(receive, send)
        finally:
            self.running -= 1

    async def _answer(self, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.saw_disconnect += 1
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        gone = asyncio.ensure_future(receive())
        going = asyncio.ensure_future(self.go.wait())
        await asyncio.wait({gone, going}, return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        if gone.done():
            self.saw_disconnect += 1
            return
        gone.cancel()
        if self.error is not None:
            raise self.error
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for number, chunk in enumerate(self.chunks):
            more = number < len(self.chunks) - 1
            await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return


def bearer(key: str, **more: str) -> dict[str, str]:
    """The headers of a caller with this key."""
    return {"authorization": f"Bearer {key}", **more}


class Level:
    """A probe whose reading the test sets. What fills the cache is work of others: a level that stands still
    for two seconds while nothing runs is no longer believed, and a slow machine takes as long for a test.
    """

    def __init__(self, kv_usage: float = 0.0, capacity_tokens: int = 10_000) -> None:
        self.kv_usage = kv_usage
        self.capacity_tokens = capacity_tokens

    async def read(self) -> Reading:
        return Reading(
            kv_usage=self.kv_usage,
            waiting=0,
            running=1 if self.kv_usage else 0,
            capacity_tokens=self.capacity_tokens,
            block_tokens=16,
        )


class Bed:
    """The middleware, its app, its events and a client."""

    def __init__(self, app: Any = None, level: Level | None = None, **settings: Any) -> None:
        self.app = App() if app is None else app
        self.level = level or Level()
        self.events: list[AdmissionEvent] = []
        self.uniform: Callable[[], float] = lambda: 0.5
        settings.setdefault("metrics", False)
        self.gate = AdmissionMiddleware(
            self.app,
            settings=Settings.load(**settings),
            probe=self.level,
            uniform=lambda: self.uniform(),  # noqa: PLW0108 - a test may set another
            hooks=[self.events.append],
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.gate), base_url="http://gate", timeout=60
        )

    async def post(self, body: Any = None, **options: Any) -> httpx.Response:
        """One guarded request; `body` is JSON, or bytes to be sent as they are."""
        if body is None:
            body = {"prompt": "hello", "max_tokens": 16}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(options.pop("path", PATH), content=content, **options)

    def send(self, body: Any = None, **options: Any) -> asyncio.Task[httpx.Response]:
        """The same, under way."""
        return asyncio.create_task(self.post(body, **options))

    @property
    def runtime(self) -> Any:
        """The gate's inner parts, once the first request has come."""
        return self.gate._runtime

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    def count(self, kind: EventKind) -> int:
        return self.kinds().count(kind)


@asynccontextmanager
async def bed(app: Any = None, level: Level | None = None, **settings: Any) -> AsyncIterator[Bed]:
    """A bed whose probe has been read once."""
    made = Bed(app, level, **settings)
    try:
        if made.gate.error is None:
            runtime = made.gate._running()
            await until(lambda: runtime.statistics().instances[0].level is not None)
        yield made
    finally:
        await made.client.aclose()
        if made.gate._runtime is not None:
            await made.gate._runtime.stop()


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until the condition holds.

    Raises:
        asyncio.TimeoutError: it never did.
    """

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(wait(), timeout_s)


class Raw:
    """One ASGI request driven by hand: the test sends messages and reads what comes back."""

    def __init__(self, gate: Any, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        lines = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": lines,
            "client": ("127.0.0.1", 1234),
            "server": ("127.0.0.1", 80),
        }
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[Message] = []
        self.task = asyncio.create_task(gate(self.scope, self._incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        """The caller's connection breaks."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.sent if m["type"] == "http.response.start"), None)


class Upload(Raw):
    """A request whose body arrives as the test says."""

    def __init__(self, gate: Any) -> None:
        super().__init__(gate)
        self._incoming.get_nowait()

    def push(self, part: bytes, *, more: bool = True) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": more})


def explode(*args: Any, **kwargs: Any) -> Any:
    """A fault of ours, put in the place of anything."""
    raise RuntimeError("planted")


class Lifespan:
    """Starts and stops an app as a server does."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._in: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._out: asyncio.Queue[Any] = asyncio.Queue()

    async def __aenter__(self) -> None:
        scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._app(scope, self._in.get, self._out.put))
        await self._in.put({"type": "lifespan.startup"})
        assert (await self._out.get())["type"] == "lifespan.startup.complete"

    async def __aexit__(self, *_: object) -> None:
        await self._in.put({"type": "lifespan.shutdown"})
        assert (await asyncio.wait_for(self._out.get(), 60))["type"] == "lifespan.shutdown.complete"
        await self._task
