"""Callers as the resolver sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tidegate.asgi.identity import IdentityOptions, Resolver, TenantKeys

CLASSES = ("system", "vip", "standard", "batch")
SECRET = "sk-very-secret"
TENANTS = (
    TenantKeys(name="acme", priority_class="vip", keys=(SECRET, "second")),
    TenantKeys(
        name="beta",
        priority_class="standard",
        keys=("sha256:" + hashlib.sha256(b"hashed").hexdigest().upper(),),
    ),
)


def resolver(tenants: Sequence[TenantKeys] = TENANTS, **options: Any) -> Resolver:
    return Resolver(tenants, IdentityOptions(**options), classes=CLASSES, default_class="standard")


def scope(
    *lines: tuple[str, str],
    client: tuple[str, int] | None = ("203.0.113.7", 4000),
    path: str = "/v1/completions",
) -> dict[str, Any]:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in lines]
    return {"type": "http", "headers": headers, "client": client, "path": path}


def bearer_line(key: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {key}"
