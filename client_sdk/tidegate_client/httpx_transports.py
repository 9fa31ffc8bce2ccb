"""The transports and clients for httpx.

Law: no behaviour here; a transport is a driver with httpx's types around it.
"""

from __future__ import annotations

from typing import Any

import httpx

from .clients import fit
from .core.policy import RetryPolicy
from .drivers import AsyncDriver, SyncDriver
from .errors import RateLimited
from .library import library
from .timebase import Timebase
from .waits import OnWait


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
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        self._inner = transport or httpx.HTTPTransport()
        self._driver = SyncDriver(_HTTPX, self._inner, policy, on_wait, timebase)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            httpx.TransportError: as the wrapped transport raises it.
        """
        response: httpx.Response = self._driver.handle(request)
        return response

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
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        self._inner = transport or httpx.AsyncHTTPTransport()
        self._driver = AsyncDriver(_HTTPX, self._inner, policy, on_wait, timebase)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands and the policy asks for errors.
            httpx.TransportError: as the wrapped transport raises it.
        """
        response: httpx.Response = await self._driver.handle(request)
        return response

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
