"""The transports and clients for httpx.

Law: no behaviour here; a transport is a driver with httpx's types around it.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from .board import Board
from .clients import fit
from .core.policy import RetryPolicy
from .drivers import AsyncDriver, SyncDriver, set_up
from .errors import RateLimited
from .library import library
from .timebase import Timebase
from .waits import OnWait

if TYPE_CHECKING:
    from typing_extensions import Self


class HttpxRateLimited(RateLimited, httpx.HTTPStatusError):
    """RateLimited as httpx users know it: also an `httpx.HTTPStatusError`."""


_HTTPX = library(httpx, HttpxRateLimited)


class RetryTransport(httpx.BaseTransport):
    """A sync httpx transport that waits as the server asks and sends refused requests again.

    Args:
        transport: the transport to wrap; `httpx.HTTPTransport()` by default. With a transport given, httpx
            ignores the
            proxies of the environment: use `tidegate_client.Client` to keep them.
        policy: what the caller is willing to do; `RetryPolicy()` by default.
        on_wait: called with a WaitEvent when a call starts to wait.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        self._inner = transport or httpx.HTTPTransport()
        self._driver = SyncDriver(set_up(_HTTPX, policy, on_wait, board, timebase), self._inner)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            httpx.TransportError: as the wrapped transport raises it.
        """
        response: httpx.Response = self._driver.handle(request)
        return response

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)

    def close(self) -> None:
        """Close the wrapped transport."""
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """An async httpx transport that waits as the server asks and sends refused requests again.

    Args:
        transport: the transport to wrap; `httpx.AsyncHTTPTransport()` by default. With a transport given,
            httpx ignores
            the proxies of the environment: use `tidegate_client.AsyncClient` to keep them.
        policy: what the caller is willing to do; `RetryPolicy()` by default.
        on_wait: called with a WaitEvent when a call starts to wait.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        self._inner = transport or httpx.AsyncHTTPTransport()
        self._driver = AsyncDriver(set_up(_HTTPX, policy, on_wait, board, timebase), self._inner)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            httpx.TransportError: as the wrapped transport raises it.
        """
        response: httpx.Response = await self._driver.handle(request)
        return response

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


def Client(  # noqa: N802  it stands where a class stood
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx.Client:
    """An `httpx.Client(**options)` whose every transport, proxies included, waits and retries."""
    return fit(httpx.Client(**options), lambda inner: RetryTransport(inner, policy=policy, on_wait=on_wait))


def AsyncClient(  # noqa: N802
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx.AsyncClient:
    """An `httpx.AsyncClient(**options)` whose every transport, proxies included, waits and retries."""
    return fit(
        httpx.AsyncClient(**options), lambda inner: AsyncRetryTransport(inner, policy=policy, on_wait=on_wait)
    )
