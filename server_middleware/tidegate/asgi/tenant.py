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
    """Who asks. `credential_hash` is SHA-256 in hexadecimal, `None` where no credential came along."""

    tenant: str
    priority_class: str
    credential_hash: str | None = None
    end_user: str | None = None
    is_configured: bool = False
