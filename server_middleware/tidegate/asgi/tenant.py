"""The two values that identity deals in: a tenant as configured, and a caller as recognised."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantKeys:
    """A configured tenant. A key is the plain credential or `sha256:` and its 64 hexadecimal digits."""

    name: str
    priority_class: str
    keys: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. `credential_hash` is SHA-256 in hexadecimal, `None` where no credential came along.

    `path` is where the app's answer will prove something of the credential, in segments; `None` where it is
    known already who asks.
    """

    tenant: str
    priority_class: str
    credential_hash: str | None = None
    end_user: str | None = None
    is_configured: bool = False
    path: tuple[str, ...] | None = None
