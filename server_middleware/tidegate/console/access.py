"""Who may look at the console.

Law of this file: it answers allowed, challenge or stranger, and nothing else. A loopback peer is
trusted only when it is the caller itself: no forwarding header (a proxy on this machine speaks for
others) and a Host that names this machine (a web page elsewhere cannot rebind its name to it).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from enum import Enum

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
    offered = _offered_token(first_header(scope["headers"], b"authorization") or "")
    expected = options.admin_token.get_secret_value()
    # Compared as bytes and always in full: the time taken tells nothing about the token.
    if hmac.compare_digest(offered.encode("utf-8", "replace"), expected.encode("utf-8")):
        return Access.ALLOWED
    return Access.CHALLENGE


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    if not client or not _is_loopback(str(client[0])):
        return False
    headers = scope["headers"]
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
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return pair.partition(":")[2]
