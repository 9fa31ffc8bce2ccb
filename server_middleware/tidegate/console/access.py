"""Who may look at the console.

Law of this file: it answers allowed, challenge or stranger, and nothing else. A loopback peer is
taken for the caller itself only without any sign of a proxy that speaks for others (a forwarding
header, HTTP/1.0, `Connection: close`: nginx before 1.29.7 adds nothing else) and with a Host that names
this machine (a web page elsewhere cannot rebind its name to it). A proxy may give no sign at all, so
being local opens what can be read, never what changes something: that takes the token.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Iterable
from enum import Enum

from tidegate.asgi.addresses import parse_network
from tidegate.asgi.types import Scope, first_header
from tidegate.console.options import ConsoleOptions

_FORWARDED = (
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-real-ip",
    b"via",
    b"cf-connecting-ip",
)


_HERE = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


class Access(Enum):
    """What a caller gets."""

    ALLOWED = "allowed"
    CHALLENGE = "challenge"  # a token would open it
    STRANGER = "stranger"  # for this caller there is no console


def access_of(scope: Scope, options: ConsoleOptions) -> Access:
    """Decide for one request."""
    if options.allow_loopback and _is_local(scope):
        return Access.ALLOWED
    if options.admin_token is None:
        return Access.STRANGER
    return Access.ALLOWED if has_token(scope, options) else Access.CHALLENGE


def has_token(scope: Scope, options: ConsoleOptions) -> bool:
    """Whether the request carries the admin token; never, where none is set."""
    if options.admin_token is None:
        return False
    offered = _offered_token(first_header(scope["headers"], b"authorization") or "")
    expected = options.admin_token.get_secret_value()
    # Compared as bytes and always in full: the time taken tells nothing about the token.
    return hmac.compare_digest(offered.encode("utf-8", "replace"), expected.encode("utf-8"))


def warning(options: ConsoleOptions, trusted_proxies: Iterable[str]) -> str | None:
    """What to say at start when strangers behind a proxy on this machine may read the page."""
    if not (options.enabled and options.allow_loopback):
        return None
    near = [proxy for proxy in trusted_proxies if proxy != "unix" and _may_be_here(proxy)]
    if not near:
        return None
    return (
        f"A proxy on this machine is trusted ({near[0]}), and callers on this machine may read "
        f"{options.path}/ (console.allow_loopback): whoever it passes on without X-Forwarded-For may, too. "
        "Set TIDEGATE_CONSOLE__ALLOW_LOOPBACK=false and an admin token, or keep that path from the proxy."
    )


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    if not client or not _is_loopback(str(client[0])):
        return False
    headers = scope["headers"]
    if scope.get("http_version") == "1.0" or first_header(headers, b"connection") == "close":
        return False
    if any(first_header(headers, name) is not None for name in _FORWARDED):
        return False
    return _names_this_machine(first_header(headers, b"host") or "")


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _may_be_here(proxy: str) -> bool:
    network = parse_network(proxy)
    return any(network.overlaps(here) for here in _HERE)


def _names_this_machine(host: str) -> bool:
    name = host[1 : host.find("]")] if host.startswith("[") else host.split(":")[0]
    return name.lower().rstrip(".") == "localhost" or _is_loopback(name)


def _offered_token(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() != "basic":
        return ""
    try:
        pair = base64.b64decode(value, validate=True).decode("utf-8")
    except ValueError:  # not base64, not even ASCII, or no text in it
        return ""
    return pair.partition(":")[2]
