"""Keys that live elsewhere (a database, a secret store) and change while the server runs.

Law of this file: a lookup never decides whether a request may live. A slow or broken provider leaves
the last known answer in force, or the caller unknown; random keys cost a bounded number of lookups
and a bounded memory. Only SHA-256 of a credential is ever passed on or kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from tidegate.asgi.tenant import TenantKeys

logger = logging.getLogger("tidegate")

KeyLookup = Callable[[str], Awaitable[TenantKeys | None]]
"""From the SHA-256 of a credential, in hexadecimal, to its owner; `None` for a key nobody has."""


class CachedKeys:
    """A provider of keys behind a cache. Bound to one event loop.

    Args:
        lookup: asks the provider.
        clock: monotonic seconds.
        ttl_s: how long an owner is believed; so long a withdrawn key may go on.
        unknown_ttl_s: how long a key is believed to be nobody's; so long a new key may have to wait.
        timeout_s: of one lookup.
        max_entries: answers remembered, the oldest forgotten first.
        max_lookups: lookups at once; callers beyond are unknown for the moment.
    """

    def __init__(
        self,
        lookup: KeyLookup,
        *,
        clock: Callable[[], float],
        ttl_s: float = 300.0,
        unknown_ttl_s: float = 30.0,
        timeout_s: float = 1.0,
        max_entries: int = 10_000,
        max_lookups: int = 16,
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        self._ttl_s = ttl_s
        self._unknown_ttl_s = unknown_ttl_s
        self._timeout_s = timeout_s
        self._max_entries = max_entries
        self._max_lookups = max_lookups
        self._known: OrderedDict[str, tuple[TenantKeys | None, float]] = OrderedDict()
        self._running: dict[str, asyncio.Task[TenantKeys | None]] = {}

    async def owner(self, credential_hash: str) -> TenantKeys | None:
        """Whose key it is; callers that ask for the same key at once share one lookup."""
        entry = self._known.get(credential_hash)
        if entry is not None and self._clock() < entry[1]:
            return entry[0]
        last = None if entry is None else entry[0]
        task = self._running.get(credential_hash)
        if task is None:
            if len(self._running) >= self._max_lookups:
                return last
            task = asyncio.ensure_future(self._ask(credential_hash, last))
            self._running[credential_hash] = task
            task.add_done_callback(lambda _: self._running.pop(credential_hash, None))
        return await asyncio.shield(task)  # one caller that leaves does not end it for the others

    async def _ask(self, credential_hash: str, last: TenantKeys | None) -> TenantKeys | None:
        try:
            owner = await asyncio.wait_for(self._lookup(credential_hash), self._timeout_s)
        except Exception:  # whatever a provider may raise
            logger.exception("The key provider failed; the last known answer stays in force.")
            self._remember(credential_hash, last, self._unknown_ttl_s)
            return last
        self._remember(credential_hash, owner, self._unknown_ttl_s if owner is None else self._ttl_s)
        return owner

    def _remember(self, credential_hash: str, owner: TenantKeys | None, ttl_s: float) -> None:
        self._known[credential_hash] = (owner, self._clock() + ttl_s)
        self._known.move_to_end(credential_hash)
        if len(self._known) > self._max_entries:
            self._known.popitem(last=False)
