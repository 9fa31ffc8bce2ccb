"""Read a refusal's body, or the start of a stream, without risking the caller's time or memory.

Law: bounded in bytes, compressed or not, and in seconds. The body is read only to learn who refused and why;
what does not come at once, or is large, is given up and the caller's answer keeps its headers and an empty
body.
"""

from __future__ import annotations

from typing import Any

from .call import Call
from .first_event import FirstEvent
from .library import Library
from .streams import resumed

BODY_BYTES = 256 * 1024
READ_S = 2.0
_DECODED_BYTES = 4 * BODY_BYTES
_PIECE_BYTES = 256  # decoded one by one: what a few bytes grow to is known before the next ones are looked at


def peek(call: Call, response: Any) -> bytes:
    """Read and close the body of `response`; afterwards it is in memory. Returns it decoded, empty if
    unreadable.
    """
    if call.setup.library.in_memory:
        return bytes(response.content)
    limit = _Limit(call)
    try:
        for chunk in response.stream:
            if limit.reached(chunk):
                break
    except call.setup.library.read_errors:
        limit.raw.clear()
    finally:
        limit.restore()
        response.stream.close()
    return _keep(response, call.setup.library, limit)


async def peek_async(call: Call, response: Any) -> bytes:
    """`peek`, on an event loop."""
    if call.setup.library.in_memory:
        return bytes(response.content)
    limit = _Limit(call)
    try:
        async for chunk in response.stream:
            if limit.reached(chunk):
                break
    except call.setup.library.read_errors:
        limit.raw.clear()
    finally:
        limit.restore()
        await response.stream.aclose()
    return _keep(response, call.setup.library, limit)


def until_generated(call: Call, response: Any) -> Any:
    """`response` once it has generated something, unread as far as its caller can tell; or the refusal that
    it turned out to be.

    Raises:
        Exception: the body broke off, or the deadline passed, before that.
    """
    if not call.watches(response):
        return response
    first, rest = FirstEvent(), iter(response.stream)
    try:
        for chunk in rest:
            if first.feed(chunk):
                break
            call.check_deadline()
    except BaseException as error:
        call.stream_broke = isinstance(error, call.setup.library.read_errors)
        response.stream.close()
        raise
    if first.refusal is not None:
        response.stream.close()
    return _watched(call, response, first, rest)


async def until_generated_async(call: Call, response: Any) -> Any:
    """`until_generated`, on an event loop."""
    if not call.watches(response):
        return response
    first, rest = FirstEvent(), aiter(response.stream)
    try:
        async for chunk in rest:
            if first.feed(chunk):
                break
            call.check_deadline()
    except BaseException as error:
        call.stream_broke = isinstance(error, call.setup.library.read_errors)
        await response.stream.aclose()
        raise
    if first.refusal is not None:
        await response.stream.aclose()
    return _watched(call, response, first, rest)


def _watched(call: Call, response: Any, first: FirstEvent, rest: Any) -> Any:
    library = call.setup.library
    if first.refusal is None:
        response.stream = resumed(response.stream, rest, first.held, library)
        return response
    status, content = first.refusal
    headers = {"content-type": "application/json", "x-should-retry": "true"}
    return library.response(status, headers=headers, stream=library.byte_stream(content))


class _Limit:
    """Counts what was read; for its lifetime the connection may be silent for `READ_S` at most, and not past
    the deadline."""

    def __init__(self, call: Call) -> None:
        self.raw: list[bytes] = []
        self._left = BODY_BYTES
        self._monotonic = call.setup.timebase.monotonic
        read_s = READ_S if call.left_s is None else max(0.001, min(READ_S, call.left_s))
        self._until = self._monotonic() + read_s
        # httpcore looks the time-outs up when it begins to read the body, so changing them here changes that.
        # The caller may share them among requests: they are replaced, not changed.
        self._extensions: dict[str, Any] = call.request.extensions
        self._callers = self._extensions.get("timeout")
        callers = self._callers or {}
        caller_s = callers.get("read")
        read_s = read_s if caller_s is None else min(read_s, caller_s)
        self._extensions["timeout"] = {**callers, "read": read_s}

    def reached(self, chunk: bytes) -> bool:
        self.raw.append(chunk)
        self._left -= len(chunk)
        beyond = self._left < 0 or self._monotonic() > self._until
        if beyond:
            self.raw.clear()
        return beyond

    def restore(self) -> None:
        if self._callers is None:
            del self._extensions["timeout"]
        else:
            self._extensions["timeout"] = self._callers


def _keep(response: Any, library: Library, limit: _Limit) -> bytes:
    """Leave what was read in `response`, as if its caller had read it; returns it decoded."""
    raw = b"".join(limit.raw)
    response.stream = library.byte_stream(raw)
    response._content = content = _decoded(response, library, raw)  # noqa: SLF001  as the library keeps it
    return content


def _decoded(response: Any, library: Library, raw: bytes) -> bytes:
    """`raw` without its content coding; empty when that fails or grows beyond bounds, as a coding within a
    coding can with any byte.
    """
    if "," in response.headers.get("content-encoding", ""):
        return b""
    pieces = (raw[at : at + _PIECE_BYTES] for at in range(0, len(raw), _PIECE_BYTES))
    copy = library.response(response.status_code, headers=response.headers, content=pieces)
    content = bytearray()
    try:
        for piece in copy.iter_bytes():
            content += piece
            if len(content) > _DECODED_BYTES:
                return b""
    except library.decoding_errors:
        return b""
    return bytes(content)
