"""How the factories keep what httpx does by itself: proxies of the environment, TLS settings, mounts.

Law: httpx builds its own transports, proxies included, exactly as it would have; each is then wrapped. (Given
a `transport=`, httpx stops reading the proxies of the environment.)
"""

from __future__ import annotations

from typing import Any, TypeVar

from .core.policy import RetryPolicy
from .waits import OnWait

ClientT = TypeVar("ClientT")


def fit(client: ClientT, transport: Any, policy: RetryPolicy | None, on_wait: OnWait | None) -> ClientT:
    """Wrap every transport of an httpx or httpx2 `client` in `transport`, a class; returns the client.

    Two attributes of httpx's clients that it does not document hold the transports; a test pins them.
    """
    fitted: Any = client

    def wrap(inner: Any) -> Any:
        return transport(inner, policy=policy, on_wait=on_wait)

    fitted._transport = wrap(fitted._transport)  # noqa: SLF001
    mounts = fitted._mounts.items()  # noqa: SLF001
    fitted._mounts = {pattern: None if inner is None else wrap(inner) for pattern, inner in mounts}  # noqa: SLF001
    return client
