"""Tidegate's client: obeys every server, never joins a herd, tells the user interface.

`AsyncRetryTransport` and `RetryTransport` fit any httpx client; `tidegate_client.httpx2` has the same for
httpx2.
"""

from .core.concurrency import AdaptiveConcurrency
from .core.decision import Why
from .core.events import WaitEvent
from .core.policy import RetryPolicy
from .ending import rate_limited
from .errors import RateLimited
from .guard import Guard
from .httpx_transports import AsyncClient, AsyncRetryTransport, Client, RetryTransport
from .options import call_options
from .waits import WaitFeed

__all__ = [
    "AdaptiveConcurrency",
    "AsyncClient",
    "AsyncRetryTransport",
    "Client",
    "Guard",
    "RateLimited",
    "RetryPolicy",
    "RetryTransport",
    "WaitEvent",
    "WaitFeed",
    "Why",
    "call_options",
    "rate_limited",
]
