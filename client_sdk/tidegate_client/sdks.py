"""OpenAI and Anthropic clients on this client's transports, their own retries off.

Law: each SDK builds its own HTTP client with its own defaults (time-outs, limits, proxies of the
environment); only the transports in it are wrapped. The SDKs are imported when asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import httpx_transports
from .clients import ClientT, fit
from .core.policy import RetryPolicy
from .waits import OnWait

if TYPE_CHECKING:
    import anthropic
    import openai

__all__ = [
    "anthropic_client",
    "async_anthropic_client",
    "async_openai_client",
    "openai_client",
    "retrying",
]


def openai_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> openai.OpenAI:
    """An `openai.OpenAI(**options)` that waits as the server asks.

    A refusal that stands is `openai.RateLimitError`, as ever; `rate_limited(error)` has the time to come
    back.

    Raises:
        ImportError: the SDK is not installed.
        TypeError: `http_client` is no client of httpx or httpx2.
    """
    import openai

    return openai.OpenAI(**_fitted(options, openai.DefaultHttpxClient, policy, on_wait))


def async_openai_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> openai.AsyncOpenAI:
    """`openai_client`, for event loops."""
    import openai

    return openai.AsyncOpenAI(**_fitted(options, openai.DefaultAsyncHttpxClient, policy, on_wait))


def anthropic_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> anthropic.Anthropic:
    """An `anthropic.Anthropic(**options)` that waits as the server asks.

    A refusal that stands is `anthropic.RateLimitError`, as ever; `rate_limited(error)` has the time to come
    back.

    Raises:
        ImportError: the SDK is not installed.
        TypeError: `http_client` is no client of httpx or httpx2.
    """
    import anthropic

    return anthropic.Anthropic(**_fitted(options, anthropic.DefaultHttpxClient, policy, on_wait))


def async_anthropic_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> anthropic.AsyncAnthropic:
    """`anthropic_client`, for event loops."""
    import anthropic

    return anthropic.AsyncAnthropic(**_fitted(options, anthropic.DefaultAsyncHttpxClient, policy, on_wait))


def retrying(
    http_client: ClientT, *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None
) -> ClientT:
    """Make an existing httpx or httpx2 client wait and retry, in place; returns it.

    For clients that some library has built: every transport of it is wrapped, proxies included. One that
    waits already only takes over what is given here.

    Raises:
        TypeError: for something that is neither.
    """
    return fit(http_client, _transport_for(http_client), policy, on_wait)


def _fitted(
    options: dict[str, Any], default: Callable[[], Any], policy: RetryPolicy | None, on_wait: OnWait | None
) -> dict[str, Any]:
    """The SDK's `options` with its retries off and its HTTP client, given or `default`, fitted."""
    http_client = retrying(options.get("http_client") or default(), policy=policy, on_wait=on_wait)
    return {"max_retries": 0, **options, "http_client": http_client}


def _transport_for(http_client: object) -> Any:
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(http_client).__mro__}
    for name, kind in (("Client", "RetryTransport"), ("AsyncClient", "AsyncRetryTransport")):
        if ("httpx", name) in names:
            return getattr(httpx_transports, kind)
        if ("httpx2", name) in names:
            from . import httpx2 as httpx2_transports

            return getattr(httpx2_transports, kind)
    raise TypeError(f"{http_client!r} is no client of httpx or httpx2: give one, or leave http_client out.")
