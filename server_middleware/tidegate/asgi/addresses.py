"""Where a request really comes from, behind proxies that are trusted and callers that are not.

Law of this file: a forwarded header counts only as far as trusted peers wrote it. `X-Forwarded-For`
is walked from the right; the first address that is not a trusted proxy is the caller, and whatever
stands left of it was said by the caller and is ignored.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from tidegate.asgi.types import Scope, list_header

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNIX = "unix"
"""The name of a peer without an address: a local process on a Unix socket."""
_IPV6_SITE_BITS = 64  # one subscriber usually holds a whole /64 and may change within it at will
_LONGEST_CHAIN = 32


class TrustedProxies:
    """A set of networks whose word about a caller is believed.

    Args:
        proxies: addresses or CIDR networks, and `unix` for peers on a Unix socket.

    Raises:
        ValueError: an entry is neither.
    """

    def __init__(self, proxies: tuple[str, ...] = ()) -> None:
        self._trusts_unix = UNIX in proxies
        self._networks = tuple(parse_network(proxy) for proxy in proxies if proxy != UNIX)

    def trusts_peer(self, scope: Scope) -> bool:
        """Whether whoever opened the connection may speak for others."""
        peer = _peer(scope)
        return self._trusts_unix if peer is None else self._trusts(peer)

    def caller(self, scope: Scope) -> str:
        """The caller's address (its /64 for IPv6), or `unix`."""
        client = scope.get("client")
        if client and not (self._networks or self._trusts_unix):  # nobody may speak for others
            return _site_of(str(client[0]))
        peer = _peer(scope)
        caller = peer
        if self.trusts_peer(scope):
            caller = self._walk(list_header(scope.get("headers", ()), b"x-forwarded-for"), peer)
        return UNIX if caller is None else _site(caller)

    def _walk(self, chain: str, peer: Address | None) -> Address | None:
        caller = peer
        for hop in reversed(chain.split(",")[-_LONGEST_CHAIN:] if chain else []):
            address = parse_address(hop)
            if address is None:
                return caller  # unreadable: the last hop that could be read is all we know
            caller = address
            if not self._trusts(address):
                break
        return caller

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def parse_network(text: str) -> Network:
    """An address or network; host bits may be set.

    Raises:
        ValueError: it is neither.
    """
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is no address or network: write e.g. '10.0.0.0/8', '::1' or 'unix'."
        ) from None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def parse_address(text: str) -> Address | None:
    """One hop as proxies write it: with or without a port, brackets or a zone; `None` when unreadable."""
    text = text.strip().strip('"')
    if len(text) > 64:
        return None
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return _parsed(text.partition("%")[0])


def _peer(scope: Scope) -> Address | None:
    client = scope.get("client")
    return parse_address(str(client[0])) if client else None


@lru_cache(maxsize=4096)
def _site(address: Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))


@lru_cache(maxsize=4096)
def _site_of(host: str) -> str:
    address = parse_address(host)
    return UNIX if address is None else _site(address)
