"""OpenAI and Anthropic clients on this client's transports, their own retries off.

Law: each SDK builds its own HTTP client with its own defaults (time-outs, limits, proxies of the
environment); only the transports in it are wrapped. The SDKs are imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import httpx_transports
from .clients import ClientT, fit
from .core.policy import RetryPolicy
from .waits import OnWait

if TYPE_CHECKING:
    import anthropic
    import openai


def openai_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> openai.OpenAI:
    """An `openai.OpenAI(**options)` that waits as the server asks.

    A refusal that stands is `openai.RateLimitError`, as ever; `rate_limited(error)` has the time to come
    back.
    """
    import openai

    http_client = options.pop("http_client", None) or openai.DefaultHttpxClient()
    return openai.OpenAI(
        **{"max_retries": 0, **options}, http_client=retrying(http_client, policy=policy, on_wait=on_wait)
    )


def async_openai_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> openai.AsyncOpenAI:
    """`openai_client`, for event loops."""
    import openai

    http_client = options.pop("http_client", None) or openai.DefaultAsyncHttpxClient()
    return openai.AsyncOpenAI(
        **{"max_retries": 0, **options}, http_client=retrying(http_client, policy=policy, on_wait=on_wait)
    )


def anthropic_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> anthropic.Anthropic:
    """An `anthropic.Anthropic(**options)` that waits as the server asks.

    A refusal that stands is `anthropic.RateLimitError`, as ever; `rate_limited(error)` has the time to come
    back.
    """
    import anthropic

    http_client = options.pop("http_client", None) or anthropic.DefaultHttpxClient()
    return anthropic.Anthropic(
        **{"max_retries": 0, **options}, http_client=retrying(http_client, policy=policy, on_wait=on_wait)
    )


def async_anthropic_client(
    *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None, **options: Any
) -> anthropic.AsyncAnthropic:
    """`anthropic_client`, for event loops."""
    import anthropic

    http_client = options.pop("http_client", None) or anthropic.DefaultAsyncHttpxClient()
    return anthropic.AsyncAnthropic(
        **{"max_retries": 0, **options}, http_client=retrying(http_client, policy=policy, on_wait=on_wait)
    )


def retrying(
    http_client: ClientT, *, policy: RetryPolicy | None = None, on_wait: OnWait | None = None
) -> ClientT:
    """Make an existing httpx or httpx2 client wait and retry, in place; returns it.

    For clients that some library has built: every transport of it is wrapped, proxies included.

    Raises:
        TypeError: for something that is neither.
    """
    transports, is_async = _transports_for(http_client)
    kind = transports.AsyncRetryTransport if is_async else transports.RetryTransport
    return fit(http_client, lambda inner: kind(inner, policy=policy, on_wait=on_wait))


def _transports_for(http_client: object) -> tuple[Any, bool]:
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(http_client).__mro__}
    for is_async, name in ((False, "Client"), (True, "AsyncClient")):
        if ("httpx", name) in names:
            return httpx_transports, is_async
        if ("httpx2", name) in names:
            from . import httpx2 as httpx2_transports

            return httpx2_transports, is_async
    raise TypeError(f"{http_client!r} is no client of httpx or httpx2: give one, or leave http_client out.")
