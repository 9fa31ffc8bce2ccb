"""The credentials a request carries, and whose they are by configuration.

Law of this file: a credential is hashed as soon as it is seen, and no error or name repeats it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from tidegate.asgi.tenant import TenantKeys
from tidegate.asgi.types import Headers

NAMES = frozenset({b"authorization", b"x-api-key", b"api-key"})
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")


def credentials(headers: Headers) -> list[bytes]:
    """The credentials given: the Bearer token, then `x-api-key`, then `api-key`; first line of each."""
    found: list[bytes] = []
    seen: list[bytes] = []
    for name, value in headers:
        key = name.lower()
        if key not in NAMES or key in seen:
            continue
        seen.append(key)
        if key != b"authorization":
            found.append(value.strip())
            continue
        scheme, _, token = value.strip().partition(b" ")
        if scheme.lower() == b"bearer":
            found.insert(0, token.strip())
    return [credential for credential in found if credential]


def digests(headers: Headers) -> list[bytes]:
    """SHA-256 of each of them."""
    return [hashlib.sha256(given).digest() for given in credentials(headers)]


def by_digest(tenants: Sequence[TenantKeys]) -> dict[bytes, tuple[bytes, TenantKeys]]:
    """From the SHA-256 of a key to itself (to be compared in constant time) and its owner.

    Raises:
        ValueError: two tenants share a key, or one is malformed.
    """
    found: dict[bytes, tuple[bytes, TenantKeys]] = {}
    for tenant in tenants:
        for key in tenant.keys:
            digest = _digest(tenant.name, key)
            if digest in found and found[digest][1] is not tenant:
                raise ValueError(
                    f"tenants[{tenant.name}].keys and tenants[{found[digest][1].name}].keys share a key: "
                    "give each tenant its own."
                )
            found[digest] = (digest, tenant)
    return found


def _digest(tenant: str, key: str) -> bytes:
    if not key.startswith("sha256:"):
        if not key.strip():
            raise ValueError(f"tenants[{tenant}].keys contains an empty key: remove it.")
        return hashlib.sha256(key.strip().encode("utf-8")).digest()
    match = _HASHED.fullmatch(key)
    if match is None:
        raise ValueError(f"tenants[{tenant}].keys: after 'sha256:' come 64 hexadecimal digits.")
    return bytes.fromhex(match[1])
