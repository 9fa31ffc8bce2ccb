"""A function of the caller's in the place of a transport: its calls as requests, its results as responses.

Law: what a function returns or raises is read for a status and headers, the way requests, aiohttp and the
SDKs carry them; anything else is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Headers(dict[str, str]):
    """Headers by lower-case name, with the two views of httpx's that are used here."""

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        """As they would stand on the wire."""
        return [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in self.items()
        ]

    def multi_items(self) -> list[tuple[str, str]]:
        """One by one."""
        return list(self.items())


class Url:
    """The server's name in the parts that identify it."""

    def __init__(self, origin: str) -> None:
        self.scheme, _, host = origin.rpartition("://")
        self.netloc = host.encode("ascii", "replace")


class CallRequest:
    """What stands for the request: a call of the caller's function, which may be made again."""

    _content = b""
    method = "GET"

    def __init__(self, origin: str) -> None:
        self.url = Url(origin)
        self.headers = Headers()
        self.extensions: dict[str, Any] = {}


class CallOutcome:
    """What stands for the response: the function's value or error, and what they say about the server."""

    def __init__(
        self,
        status_code: int,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        *,
        json: object = None,
        value: Any = None,
        error: Exception | None = None,
    ) -> None:
        self.status_code = status_code
        self.headers = Headers({str(name).lower(): str(text) for name, text in (headers or {}).items()})
        self.content = content
        self.extensions: dict[str, Any] = {}
        self.request: Any = None
        self.value = value
        self.error = error

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process with a RateLimited: not the function's own objects."""
        return {**self.__dict__, "value": None, "error": None}

    def delivered(self) -> Any:
        """The value the function returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


class SyncFunction:
    """The function in the place of a transport."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def handle_request(self, _request: Any) -> CallOutcome:
        """Call the function once; an error that tells no status is raised."""
        try:
            value = self._run()
        except Exception as error:
            outcome = outcome_of(error)
            if outcome is None:
                raise
            return outcome
        return outcome_of(value) or CallOutcome(200, value=value)


class AsyncFunction:
    """The coroutine function in the place of a transport."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    async def handle_async_request(self, _request: Any) -> CallOutcome:
        """Call the function once; an error that tells no status is raised."""
        try:
            value = await self._run()
        except Exception as error:
            outcome = outcome_of(error)
            if outcome is None:
                raise
            return outcome
        return outcome_of(value) or CallOutcome(200, value=value)


def outcome_of(result: Any) -> CallOutcome | None:
    """The answer that a returned value or a raised error carries, None when it carries none."""
    error = result if isinstance(result, Exception) else None
    for carrier in (result, getattr(result, "response", None)):
        status = getattr(carrier, "status_code", None) or getattr(carrier, "status", None)
        headers = getattr(carrier, "headers", None)
        if isinstance(status, int) and isinstance(headers, Mapping):
            content = _content_of(carrier) if status >= 400 else b""
            return CallOutcome(status, headers, content, value=result, error=error)
    return None


def _content_of(carrier: Any) -> bytes:
    """The body of a failure as far as it is in memory. An answer's is its caller's: to look at it may read a
    stream that has no end.
    """
    try:
        content = carrier.content
    except Exception:  # noqa: BLE001  not read yet, or none: each library has its own word for it
        return b""
    return content if isinstance(content, bytes) else b""
