"""Keys that live elsewhere (a database, a secret store) and change while the server runs.

Law of this file: nobody's is not the same as not known. A slow or broken provider leaves the last known
answer in force; of a key it has never told anything about, it is said that nothing can be told. Random keys
cost a bounded number of lookups and a bounded memory, and push no owner out of it. Only SHA-256 of a
credential is ever passed on or kept.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from tidegate.asgi.tenant import TenantKeys

logger = logging.getLogger("tidegate")

KeyLookup = Callable[[str], Awaitable[TenantKeys | None]]
"""From the SHA-256 of a credential, in hexadecimal, to its owner; `None` for a key nobody has."""
ASK_AGAIN_S = 2.0  # after a lookup that failed
COMPLAIN_EVERY_S = 60.0  # a provider that is down fails once for every key that comes


class CannotTell(Exception):
    """The provider has never told whose key it is, and cannot be asked now."""


class _Answers:
    """What was told of so many keys, and until when it is believed; the longest unused is forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, tuple[TenantKeys | None, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, credential_hash: str) -> tuple[TenantKeys | None, float] | None:
        entry = self._known.get(credential_hash)
        if entry is not None:
            self._known.move_to_end(credential_hash)
        return entry

    def put(self, credential_hash: str, owner: TenantKeys | None, until: float) -> None:
        self._known[credential_hash] = (owner, until)
        self._known.move_to_end(credential_hash)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def drop(self, credential_hash: str) -> None:
        self._known.pop(credential_hash, None)


class CachedKeys:
    """A provider of keys behind a cache. Bound to one event loop.

    Args:
        lookup: asks the provider.
        clock: monotonic seconds.
        ttl_s: how long an owner is believed; so long a withdrawn key may go on.
        unknown_ttl_s: how long a key is believed to be nobody's; so long a new key may have to wait.
        timeout_s: of one lookup.
        max_entries: answers remembered, of owners and of strangers each.
        max_lookups: lookups at once; of callers beyond nothing new can be told.
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
        self._max_lookups = max_lookups
        self._owners = _Answers(max_entries)
        self._strangers = _Answers(max_entries)
        self._failed = _Answers(max_entries)  # asked in vain, and of whom nothing was told before
        self._running: dict[str, asyncio.Task[TenantKeys | None]] = {}
        self._silent_until = -math.inf

    async def owner(self, credential_hash: str) -> TenantKeys | None:
        """Whose key it is, `None` for nobody's; callers that ask for one key at once share one lookup.

        Raises:
            CannotTell: nothing was ever told of it, and there is no answer now.
        """
        told = self._told(credential_hash)
        entry = told or self._failed.get(credential_hash)
        if entry is None or self._clock() >= entry[1]:
            task = self._running.get(credential_hash)
            if task is None and len(self._running) < self._max_lookups:
                task = asyncio.ensure_future(self._ask(credential_hash))
                self._running[credential_hash] = task
                task.add_done_callback(lambda task: self._ended(credential_hash, task))
            if task is not None:
                return await asyncio.shield(task)  # one caller that leaves does not end it for the others
        if told is None:
            raise CannotTell
        return told[0]

    def _told(self, credential_hash: str) -> tuple[TenantKeys | None, float] | None:
        """The last answer there was, `None` if there was none; and until when it is believed."""
        return self._owners.get(credential_hash) or self._strangers.get(credential_hash)

    def _ended(self, credential_hash: str, task: asyncio.Task[TenantKeys | None]) -> None:
        self._running.pop(credential_hash, None)
        if not task.cancelled():
            task.exception()  # looked at, even if everybody who waited for it has left

    async def _ask(self, credential_hash: str) -> TenantKeys | None:
        told = self._told(credential_hash)
        try:
            owner = await asyncio.wait_for(self._lookup(credential_hash), self._timeout_s)
        except Exception:  # whatever a provider may raise
            if self._clock() >= self._silent_until:
                self._silent_until = self._clock() + COMPLAIN_EVERY_S
                logger.exception(
                    "Tidegate: The provider of keys failed (said once a minute at most); "
                    "the last known answer stays in force."
                )
            if told is None:
                self._failed.put(credential_hash, None, self._clock() + ASK_AGAIN_S)
                raise CannotTell from None
            self._remember(credential_hash, told[0], self._unknown_ttl_s)
            return told[0]
        self._remember(credential_hash, owner, self._unknown_ttl_s if owner is None else self._ttl_s)
        return owner

    def _remember(self, credential_hash: str, owner: TenantKeys | None, ttl_s: float) -> None:
        ours, others = self._owners, self._strangers
        if owner is None:
            ours, others = others, ours
        ours.put(credential_hash, owner, self._clock() + ttl_s)
        others.drop(credential_hash)
        self._failed.drop(credential_hash)
