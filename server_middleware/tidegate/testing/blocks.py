"""The paged KV cache: who holds how many blocks, and which prompt blocks are shared.

Law of this file: blocks are counted, never stored; held + free == usable after every call. Full prompt
blocks have an identity (any hashable that stands for the block and all before it) and are shared by
reference counting; when nobody holds such a block any more it stays readable but counts as free, and the
one idle longest is dropped first, as in vLLM's automatic prefix caching. Private blocks (partial prompt
blocks and all output) have no identity.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class BlockPool:
    """Counts of a cache with `usable` blocks."""

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self._private = 0
        self._holders: dict[Hashable, int] = {}
        self._idle: dict[Hashable, None] = {}

    @property
    def free(self) -> int:
        """Blocks that can be handed out, idle shared ones included."""
        return self.usable - self._private - len(self._holders)

    def hits(self, prefix: Sequence[Hashable]) -> int:
        """How many leading blocks of `prefix` are readable."""
        for count, block in enumerate(prefix):
            if block not in self._holders and block not in self._idle:
                return count
        return len(prefix)

    def cost(self, prefix: Sequence[Hashable], private: int) -> int:
        """Free blocks that `hold` would take."""
        return private + sum(block not in self._holders for block in prefix)

    def hold(self, prefix: Sequence[Hashable], private: int) -> None:
        """Takes the blocks of `prefix` and `private` more; the caller has compared `cost` with `free`."""
        for block in prefix:
            self._holders[block] = self._holders.get(block, 0) + 1
            self._idle.pop(block, None)
        self._private += private
        self._drop_idle()

    def extend(self) -> None:
        """Takes one more private block; the caller has seen that one is free."""
        self._private += 1
        self._drop_idle()

    def release(self, prefix: Sequence[Hashable], private: int) -> None:
        """Gives back what `hold` and `extend` took."""
        self._private -= private
        # Later blocks go idle, and are dropped, first: a chain is useless from its first hole on.
        for block in reversed(prefix):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._idle[block] = None

    def _drop_idle(self) -> None:
        while len(self._idle) > self.free:
            del self._idle[next(iter(self._idle))]
