"""Who is asking: tenant, priority class and end user.

Law of this file: identity is the server's. It comes from configuration keyed by credential, from a
header that a trusted proxy wrote, or from what the app itself has shown to accept; a caller may lower
its priority and never raise it. Keys are held as SHA-256 and are never logged, labelled or returned.

vLLM puts this middleware outside its own authentication, so a request is named here before the app
has checked its key. `require_key` has us check it first.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tidegate.asgi.addresses import UNIX, TrustedProxies, parse_network
from tidegate.asgi.classify import segments
from tidegate.asgi.credentials import by_digest, digests
from tidegate.asgi.keys import CachedKeys, CannotTell
from tidegate.asgi.proofs import Proofs
from tidegate.asgi.tenant import Caller, TenantKeys
from tidegate.asgi.types import Headers, Scope, header_lines
from tidegate.option_types import Texts

__all__ = [
    "PRIORITY_HEADER",
    "UNPROVEN",
    "Caller",
    "IdentityOptions",
    "Resolver",
    "TenantKeys",
]

PRIORITY_HEADER = b"x-tidegate-priority"
UNPROVEN = "unproven"
"""The one tenant of all credentials that have not proved themselves."""
_LONGEST_PATH_CHARACTERS = 256  # two that end alike for so long are one
_NAME = re.compile(r"[\x20-\x7e]{1,128}")


class IdentityOptions(BaseModel):
    """Whose word counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trusted_proxies: Texts = ()
    """Addresses or networks of proxies whose headers are believed; `unix` for peers on a Unix socket."""
    tenant_header: str | None = None
    """Header by which a trusted proxy names the tenant, e.g. `X-Tenant`."""
    end_user_header: str | None = None
    """Header naming the user inside one service's key; believed from trusted proxies and configured keys."""
    require_key: bool = False
    """Answer 401 to callers without a configured key, before the app is asked: past every fault of the gate
    too, and in every mode but `shadow`."""
    max_credentials: int = Field(default=10_000, ge=1)
    """Credentials nobody configured that are remembered as accepted by the app."""
    flex_class: str | None = "batch"
    """Class to which a body with `"service_tier": "flex"` lowers itself; `None`: not at all."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            if proxy != UNIX:
                parse_network(proxy)
        return proxies

    @field_validator("tenant_header", "end_user_header")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"{name!r} is no header name: write e.g. 'X-Tenant'.")
        return name


class Resolver:
    """Names callers by configuration, and by what the app has shown of unknown credentials.

    Args:
        tenants: the configured ones.
        options: whose word counts.
        classes: names of the priority classes, highest first.
        default_class: for callers nobody configured.
        keys: a provider of keys that are not in the configuration; used by `identify` only.

    Raises:
        ValueError: one key names two tenants, or a `sha256:` key is malformed.
    """

    def __init__(
        self,
        tenants: Sequence[TenantKeys],
        options: IdentityOptions,
        *,
        classes: Sequence[str],
        default_class: str,
        keys: CachedKeys | None = None,
    ) -> None:
        self._keys = keys
        self.renew(tenants, default_class)
        self._options = options
        self._proxies = TrustedProxies(options.trusted_proxies)
        self._ranks = {name: rank for rank, name in enumerate(classes)}
        self._tenant_header = _lower(options.tenant_header)
        self._end_user_header = _lower(options.end_user_header)
        self._proofs = Proofs(options.max_credentials)

    def renew(self, tenants: Sequence[TenantKeys], default_class: str) -> None:
        """Other tenants from now on; what the app has shown of unknown credentials stays.

        Raises:
            ValueError: as at construction; nothing has changed.
        """
        self._by_key = by_digest(tenants)
        self._by_name = {tenant.name: tenant for tenant in tenants}
        self._default_class = default_class
        self._configured: dict[bytes, Caller] = {}  # by key, as far as they have come

    def resolve(self, scope: Scope) -> Caller:
        """The caller of this request; the same for equal headers until the app shows something new."""
        return self._finished(scope, self._recognised(scope))

    def nameless(self, scope: Scope) -> Caller:
        """As `resolve`, for a request without any header that names a caller or lowers its class."""
        path = segments(scope.get("path", "")[-_LONGEST_PATH_CHARACTERS:])
        return _stranger(self._unknown(scope, None, path), self._default_class, None, path)

    async def identify(self, scope: Scope) -> Caller:
        """As `resolve`, but asks the provider of keys, if there is one, about an unknown credential.

        Raises:
            CannotTell: a key is required, and the provider cannot be asked about this one.
        """
        caller = self._recognised(scope)
        if self._keys is not None and not caller.is_configured and caller.credential_hash is not None:
            untold: CannotTell | None = None
            for digest in digests(scope.get("headers", ())):
                try:
                    owner = await self._keys.owner(digest.hex())
                except CannotTell as error:
                    untold = error
                    continue
                if owner is not None:
                    return self._finished(scope, self._owned(owner, digest))
            if untold is not None and self.requires_key:
                raise untold
        return self._finished(scope, caller)

    def _recognised(self, scope: Scope) -> Caller:
        headers: Headers = scope.get("headers", ())
        is_named = self._tenant_header is not None and self._proxies.trusts_peer(scope)
        return (self._named(headers) if is_named else None) or self._by_credential(scope, headers)

    def _finished(self, scope: Scope, caller: Caller) -> Caller:
        """With the end user, and lowered as the caller wishes."""
        headers: Headers = scope.get("headers", ())
        header = self._end_user_header
        if header is not None and (caller.is_configured or self._proxies.trusts_peer(scope)):
            caller = replace(caller, end_user=_only(headers, header))
        for wish in header_lines(headers, PRIORITY_HEADER):
            caller = self.lowered(caller, wish)
        return caller

    def _owned(self, tenant: TenantKeys, digest: bytes) -> Caller:
        known = tenant.priority_class in self._ranks
        return Caller(
            tenant=tenant.name,
            priority_class=tenant.priority_class if known else self._default_class,
            credential_hash=digest.hex(),
            is_configured=True,
        )

    def _remembered(self, digest: bytes, tenant: TenantKeys) -> Caller:
        caller = self._configured.get(digest)
        if caller is None:
            caller = self._configured[digest] = self._owned(tenant, digest)
        return caller

    def lowered(self, caller: Caller, priority_class: str | None) -> Caller:
        """The caller in that class if it ranks lower; otherwise unchanged, unknown names included."""
        rank = None if priority_class is None else self._ranks.get(priority_class)
        if priority_class is None or rank is None or rank <= self._ranks.get(caller.priority_class, -1):
            return caller
        return replace(caller, priority_class=priority_class)

    def is_allowed(self, caller: Caller) -> bool:
        """Whether the caller may go on to the app; only `require_key` makes this false."""
        return caller.is_configured or not self.requires_key

    @property
    def requires_key(self) -> bool:
        """Whether only callers with a configured key may go on to the app."""
        return self._options.require_key

    def observed(self, caller: Caller, status: int) -> None:
        """The app, not we, answered this caller with `status`."""
        if caller.path is not None:
            self._proofs.observed(caller.credential_hash, caller.path, status)

    def _named(self, headers: Headers) -> Caller | None:
        name = None if self._tenant_header is None else _only(headers, self._tenant_header)
        if name is None:
            return None
        known = self._by_name.get(name)
        if known is not None:
            return Caller(tenant=name, priority_class=known.priority_class, is_configured=True)
        return Caller(tenant=f"header-{name}", priority_class=self._default_class)

    def _by_credential(self, scope: Scope, headers: Headers) -> Caller:
        found = digests(headers)
        for digest in found:
            tenant = self._owner(digest)
            if tenant is not None:
                return self._remembered(digest, tenant)
        given = found[0].hex() if found else None
        path = segments(scope.get("path", "")[-_LONGEST_PATH_CHARACTERS:])
        return _stranger(self._unknown(scope, given, path), self._default_class, given, path)

    def _owner(self, digest: bytes) -> TenantKeys | None:
        entry = self._by_key.get(digest)
        if entry is None or not hmac.compare_digest(entry[0], digest):
            return None
        return entry[1]

    def _unknown(self, scope: Scope, credential: str | None, path: tuple[str, ...]) -> str:
        if credential is not None and self._proofs.is_proven(credential):
            return f"key-{credential[:16]}"
        return UNPROVEN if self._proofs.refuses(path) else f"address-{self._proxies.caller(scope)}"


@lru_cache(maxsize=4096)  # most requests come from callers seen before
def _stranger(tenant: str, priority_class: str, credential_hash: str | None, path: tuple[str, ...]) -> Caller:
    return Caller(tenant=tenant, priority_class=priority_class, credential_hash=credential_hash, path=path)


def _only(headers: Headers, name: bytes) -> str | None:
    """The value of a header that came exactly once and is short and plain; otherwise nobody's word."""
    lines = list(header_lines(headers, name))
    return lines[0] if len(lines) == 1 and _NAME.fullmatch(lines[0]) else None


def _lower(name: str | None) -> bytes | None:
    return None if name is None else name.lower().encode("ascii")
