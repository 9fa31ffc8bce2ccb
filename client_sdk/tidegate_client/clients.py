"""How the factories keep what httpx does by itself: proxies of the environment, TLS settings, mounts.

Law: httpx builds its own transports, proxies included, exactly as it would have; each is then wrapped. (Given
a `transport=`, httpx stops reading the proxies of the environment.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

ClientT = TypeVar("ClientT")


def fit(client: ClientT, wrap: Callable[[Any], Any]) -> ClientT:
    """Replace every transport of an httpx or httpx2 `client` by `wrap` of it; returns the client.

    Two attributes of httpx's clients that it does not document hold the transports; a test pins them.
    """
    fitted: Any = client
    fitted._transport = wrap(fitted._transport)  # noqa: SLF001
    mounts = fitted._mounts.items()  # noqa: SLF001
    fitted._mounts = {pattern: None if inner is None else wrap(inner) for pattern, inner in mounts}  # noqa: SLF001
    return client
