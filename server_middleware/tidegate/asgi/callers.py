"""Who asks: the caller of an arrival, as far as its headers, its address and its path tell.

Law of this file: the resolver is handed what tells who asks, and nothing else of a request.
"""

from __future__ import annotations

from tidegate.asgi.arrival import Arrival
from tidegate.asgi.identity import Caller, Resolver
from tidegate.asgi.keys import CachedKeys
from tidegate.asgi.sieve import Sieve
from tidegate.asgi.types import HeaderList, Scope
from tidegate.settings import Settings


class Callers:
    """Recognises the callers of one middleware.

    Args:
        settings: with the tenants, and whose word counts.
        keys: the provider of keys that are not in the settings.

    Raises:
        ValueError: two tenants share a key.
    """

    def __init__(self, settings: Settings, keys: CachedKeys | None = None) -> None:
        self.asks_about_keys = keys is not None
        self._flex_class = settings.identity.flex_class
        self._sieve = Sieve(settings.identity)
        self._resolver = Resolver(
            settings.tenant_keys(),
            settings.identity,
            classes=[row.name for row in settings.classes],
            default_class=settings.default_tenant.priority_class,
            keys=keys,
        )

    def renew(self, settings: Settings) -> None:
        """The tenants of these settings are recognised from now on; what was learnt stays.

        Raises:
            ValueError: two tenants share a key; nothing has changed.
        """
        self._resolver.renew(settings.tenant_keys(), settings.default_tenant.priority_class)

    @property
    def requires_key(self) -> bool:
        """Whether only callers with a configured key may go on to the app."""
        return self._resolver.requires_key

    def lines(self, scope: Scope) -> HeaderList:
        """The header lines that matter here."""
        return self._sieve.lines(scope.get("headers", ()))

    def recognise(self, arrival: Arrival) -> Caller | None:
        """Who asks, by what is known here; `None`: a configured key is required, and there is none."""
        lines = arrival.lines
        if not lines or (len(lines) == 1 and lines[0][0] == b"content-length"):
            caller = self._resolver.nameless(arrival.scope)
        else:
            caller = self._resolver.resolve(_for_identity(arrival))
        return caller if self._resolver.is_allowed(caller) else None

    async def identify(self, arrival: Arrival) -> Caller | None:
        """As `recognise`, but asks the provider of keys too, where there is one (`asks_about_keys`).

        Raises:
            CannotTell: a configured key is required, and whether this is one cannot be told now.
        """
        caller = await self._resolver.identify(_for_identity(arrival))
        return caller if self._resolver.is_allowed(caller) else None

    def lowered_by(self, service_tier: str | None, caller: Caller) -> Caller:
        """The caller in the class to which the tier that its body names lowers it."""
        return self._resolver.lowered(caller, self._flex_class) if service_tier == "flex" else caller

    def observed(self, caller: Caller, status: int) -> None:
        """The app has answered this caller; keys it accepts become tenants of their own."""
        self._resolver.observed(caller, status)


def _for_identity(arrival: Arrival) -> Scope:
    """Of the scope, what tells who asks, and where."""
    scope = arrival.scope
    return {"client": scope.get("client"), "path": scope.get("path", ""), "headers": arrival.lines}
