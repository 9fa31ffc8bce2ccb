"""The transports and clients for httpx.

Law: names and types only; what they do is in `transports` and below.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx

from .clients import fit
from .core.policy import RetryPolicy
from .errors import RateLimited
from .library import library, limits
from .transports import AsyncRetrying, SyncRetrying
from .waits import OnWait


class HttpxRateLimited(RateLimited, httpx.HTTPStatusError):
    """RateLimited as httpx users know it: also an `httpx.HTTPStatusError`."""


_LIBRARY = library(httpx, HttpxRateLimited)
_LIMITS = limits(httpx)


class RetryTransport(SyncRetrying[httpx.Request, httpx.Response], httpx.BaseTransport):
    """A sync httpx transport that waits as the server asks; `httpx.Client(transport=RetryTransport())`."""

    _library = _LIBRARY
    _default = staticmethod(partial(httpx.HTTPTransport, limits=_LIMITS))


class AsyncRetryTransport(AsyncRetrying[httpx.Request, httpx.Response], httpx.AsyncBaseTransport):
    """An async httpx transport that waits as the server asks."""

    _library = _LIBRARY
    _default = staticmethod(partial(httpx.AsyncHTTPTransport, limits=_LIMITS))


def Client(  # noqa: N802  it stands where a class stood
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx.Client:
    """An `httpx.Client(**options)` whose every transport, proxies included, waits and retries."""
    return fit(httpx.Client(**{"limits": _LIMITS, **options}), RetryTransport, policy, on_wait)


def AsyncClient(  # noqa: N802
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx.AsyncClient:
    """An `httpx.AsyncClient(**options)` whose every transport, proxies included, waits and retries."""
    return fit(httpx.AsyncClient(**{"limits": _LIMITS, **options}), AsyncRetryTransport, policy, on_wait)
