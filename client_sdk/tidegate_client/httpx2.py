"""The transports and clients for httpx2.

Law: names and types only; what they do is in `transports` and below.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2

from .clients import fit
from .core.policy import RetryPolicy
from .errors import RateLimited
from .library import library, limits
from .transports import AsyncRetrying, SyncRetrying
from .waits import OnWait

__all__ = ["AsyncClient", "AsyncRetryTransport", "Client", "Httpx2RateLimited", "RetryTransport"]


class Httpx2RateLimited(RateLimited, httpx2.HTTPStatusError):
    """RateLimited as httpx2 users know it: also an `httpx2.HTTPStatusError`."""


_LIBRARY = library(httpx2, Httpx2RateLimited)
_LIMITS = limits(httpx2)


class RetryTransport(SyncRetrying[httpx2.Request, httpx2.Response], httpx2.BaseTransport):
    """A sync httpx2 transport that waits as the server asks; `httpx2.Client(transport=RetryTransport())`."""

    _library = _LIBRARY
    _default = staticmethod(partial(httpx2.HTTPTransport, limits=_LIMITS))


class AsyncRetryTransport(AsyncRetrying[httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport):
    """An async httpx2 transport that waits as the server asks."""

    _library = _LIBRARY
    _default = staticmethod(partial(httpx2.AsyncHTTPTransport, limits=_LIMITS))


def Client(  # noqa: N802  it stands where a class stood
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx2.Client:
    """An `httpx2.Client(**options)` whose every transport, proxies included, waits and retries."""
    return fit(httpx2.Client(**{"limits": _LIMITS, **options}), RetryTransport, policy, on_wait)


def AsyncClient(  # noqa: N802
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> httpx2.AsyncClient:
    """An `httpx2.AsyncClient(**options)` whose every transport, proxies included, waits and retries."""
    return fit(httpx2.AsyncClient(**{"limits": _LIMITS, **options}), AsyncRetryTransport, policy, on_wait)
