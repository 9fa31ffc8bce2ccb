"""The console's routes: the page, its JSON and its stream of events.

Law of this file: it reads the gate and never changes it. It costs nothing while nobody looks but one
history point a second; the text of a second is made once, however many watch. For a stranger it does
not exist.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from tidegate import processes
from tidegate.asgi.types import HeaderList, Message, Receive, Scope, Send
from tidegate.console.access import Access, access_of
from tidegate.console.options import ConsoleOptions
from tidegate.console.snapshot import History, describe
from tidegate.core.statistics import Statistics

MAX_VIEWERS = 16
KEEP_ALIVE_S = 15.0
_TYPES = {
    "index.html": b"text/html; charset=utf-8",
    "console.css": b"text/css; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
    "plots.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_SAFE: HeaderList = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class FaultCount(Protocol):
    """Counts the gate's own exceptions."""

    @property
    def count(self) -> int:
        """Since the start."""


class Watched(Protocol):
    """What the console shows."""

    @property
    def faults(self) -> FaultCount:
        """The gate's own exceptions; many of them and it passes everything through."""

    @property
    def mode(self) -> str:
        """`enforce`, `shadow` or `off`."""

    def statistics(self) -> Statistics:
        """A snapshot of the gate."""


class Console:
    """The operator's page as an ASGI app; ask `serves` first.

    Args:
        options: where it stands and who may look.
        watched: the gate.
        clock: monotonic seconds, for the history.
        wall_clock: epoch seconds, for the time shown.
        refused_lately: refusals of the last minute by tenant.
    """

    def __init__(
        self,
        options: ConsoleOptions,
        watched: Watched,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        refused_lately: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._options = options
        self._watched = watched
        self._clock = clock
        self._wall_clock = wall_clock
        self._refused_lately = refused_lately
        self._history = History()
        self._version = _version()
        self._viewers = 0
        self._pulse = asyncio.Event()
        self._text: bytes | None = None  # of this second
        self._is_closed = False

    def record(self, statistics: Statistics) -> None:
        """Keep a point of history and tell the viewers; called once a second."""
        point = self._history.record(statistics, self._clock(), self._watched.faults.count)
        self._text = None
        if self._viewers:
            self._text = _event({**self._present(statistics), "point": point})
        self._wake()

    def close(self) -> None:
        """End every stream of events, so that an open page does not hold up the server's stop."""
        self._is_closed = True
        self._wake()

    def serves(self, scope: Scope) -> bool:
        """Whether this HTTP request is the console's and not the app's."""
        path = _inner_path(scope)
        prefix = self._options.path
        if not self._options.enabled or not (path == prefix or path.startswith(prefix + "/")):
            return False
        return access_of(scope, self._options) is not Access.STRANGER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request that `serves` has claimed."""
        if access_of(scope, self._options) is Access.CHALLENGE:
            challenge = (b"www-authenticate", b'Basic realm="Tidegate", charset="UTF-8"')
            await _answer(send, 401, b"Give the admin token as password.\n", headers=[challenge])
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"The console only answers GET.\n", headers=[(b"allow", b"GET, HEAD")])
        else:
            await self._route(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = _inner_path(scope).removeprefix(self._options.path)
        has_body = scope["method"] == "GET"
        if name == "":
            there = scope.get("root_path", "") + self._options.path + "/"
            await _answer(send, 307, b"", headers=[(b"location", there.encode("latin-1", "replace"))])
        elif name == "/state.json":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            body = msgspec.json.encode(self.state(with_history=query.get("history") != ["0"]))
            await _answer(send, 200, body, b"application/json", has_body=has_body)
        elif name == "/events" and has_body:
            await self._stream(receive, send)
        elif (file := name[1:] or "index.html") in _TYPES:
            await _answer(send, 200, _file(file), _TYPES[file], has_body=has_body)
        else:
            await _answer(send, 404, b"No such page. Try / , /state.json or /events.\n", has_body=has_body)

    def state(self, with_history: bool = True) -> dict[str, Any]:
        """What `state.json` holds."""
        present = self._present(self._watched.statistics())
        return {**present, "history": self._history.columns()} if with_history else present

    def _present(self, statistics: Statistics) -> dict[str, Any]:
        present = describe(
            statistics, self._watched.mode, self._version, self._wall_clock(), self._refused_lately()
        )
        return {**present, "faults": self._watched.faults.count, "workers": processes.workers()}

    async def _stream(self, receive: Receive, send: Send) -> None:
        """Everything once, then the present once a second, until the viewer leaves."""
        if self._viewers >= MAX_VIEWERS or self._is_closed:
            await _answer(send, 503, b"Too many viewers.\n", headers=[(b"retry-after", b"10")])
            return
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"), *_SAFE]
        self._viewers += 1
        gone = asyncio.ensure_future(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            text = b"retry: 2000\n\n" + _event(self.state())
            while not (gone.done() or self._is_closed):
                pulse = self._pulse  # taken before the send, so that no second slips by during it
                await send({"type": "http.response.body", "body": text, "more_body": True})
                text = await self._next_text(pulse, gone)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._viewers -= 1
            gone.cancel()

    async def _next_text(self, pulse: asyncio.Event, gone: asyncio.Future[None]) -> bytes:
        beat = asyncio.ensure_future(pulse.wait())
        either: list[asyncio.Future[Any]] = [gone, beat]
        try:
            await asyncio.wait(either, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            has_news = beat.done()
        finally:
            beat.cancel()
        return self._text if has_news and self._text else b": still here\n\n"

    def _wake(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()


@cache
def _file(name: str) -> bytes:
    return (files("tidegate.console") / "static" / name).read_bytes()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def _inner_path(scope: Scope) -> str:
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes = b"text/plain; charset=utf-8",
    *,
    headers: HeaderList | None = None,
    has_body: bool = True,
) -> None:
    length = str(len(body)).encode()
    lines = [(b"content-type", content_type), (b"content-length", length), *_SAFE, *(headers or [])]
    start: Message = {"type": "http.response.start", "status": status, "headers": lines}
    await send(start)
    await send({"type": "http.response.body", "body": body if has_body else b""})


def _version() -> str:
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "unknown"
