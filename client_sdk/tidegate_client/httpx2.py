"""The transports and clients for httpx2.

Law: no behaviour here; a transport is a driver with httpx2's types around it.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx2

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


class Httpx2RateLimited(RateLimited, httpx2.HTTPStatusError):
    """RateLimited as httpx2 users know it: also an `httpx2.HTTPStatusError`."""


_HTTPX2 = library(httpx2, Httpx2RateLimited)


class RetryTransport(httpx2.BaseTransport):
    """A sync httpx2 transport that waits as the server asks and sends refused requests again.

    Args:
        transport: the transport to wrap; `httpx2.HTTPTransport()` by default. With a transport given, httpx2
            ignores the
            proxies of the environment: use `tidegate_client.httpx2.Client` to keep them.
        policy: what the caller is willing to do; `RetryPolicy()` by default.
        on_wait: called with a WaitEvent when a call starts to wait.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        transport: httpx2.BaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        self._inner = transport or httpx2.HTTPTransport()
        self._driver = SyncDriver(set_up(_HTTPX2, policy, on_wait, board, timebase), self._inner)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            httpx2.TransportError: as the wrapped transport raises it.
        """
        response: httpx2.Response = self._driver.handle(request)
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


class AsyncRetryTransport(httpx2.AsyncBaseTransport):
    """An async httpx2 transport that waits as the server asks and sends refused requests again.

    Args:
        transport: the transport to wrap; `httpx2.AsyncHTTPTransport()` by default. With a transport given,
            httpx2 ignores
            the proxies of the environment: use `tidegate_client.httpx2.AsyncClient` to keep them.
        policy: what the caller is willing to do; `RetryPolicy()` by default.
        on_wait: called with a WaitEvent when a call starts to wait.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        self._inner = transport or httpx2.AsyncHTTPTransport()
        self._driver = AsyncDriver(set_up(_HTTPX2, policy, on_wait, board, timebase), self._inner)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            httpx2.TransportError: as the wrapped transport raises it.
        """
        response: httpx2.Response = await self._driver.handle(request)
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
) -> httpx2.Client:
    """An `httpx2.Client(**options)` whose every transport, proxies included, waits and retries."""
    return fit(httpx2.Client(**options), lambda inner: RetryTransport(inner, policy=policy, on_wait=on_wait))


def AsyncClient(  # noqa: N802
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx2.AsyncClient:
    """An `httpx2.AsyncClient(**options)` whose every transport, proxies included, waits and retries."""
    return fit(
        httpx2.AsyncClient(**options),
        lambda inner: AsyncRetryTransport(inner, policy=policy, on_wait=on_wait),
    )
