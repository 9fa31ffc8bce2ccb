"""What the app behind us thinks of credentials nobody configured here.

Law of this file: a credential becomes a tenant of its own only when the app has accepted it and is
known to refuse others. On an open server any random string would prove itself, so there it proves
nothing. Memory is bounded; what is forgotten must prove itself again.
"""

from __future__ import annotations

from collections import OrderedDict


class Proofs:
    """Learns from the statuses of the app's own answers.

    Args:
        max_credentials: accepted credentials remembered, the least recently seen forgotten first.
    """

    def __init__(self, max_credentials: int = 10_000) -> None:
        self._max_credentials = max_credentials
        self._accepted: OrderedDict[str, None] = OrderedDict()
        self._refused: str | None = None

    @property
    def app_refuses(self) -> bool:
        """Whether the app has turned somebody away, and has let nobody in without credentials since."""
        return self._refused is not None

    def is_proven(self, credential: str) -> bool:
        """Whether the app accepts this credential and refuses others."""
        if self._refused is None or self._refused == credential or credential not in self._accepted:
            return False
        self._accepted.move_to_end(credential)
        return True

    def observed(self, credential: str | None, status: int) -> None:
        """The app answered `status` to a caller with this credential (hash), or with none.

        Only 401 shows that it checks credentials; a 403 may be about anything.
        """
        if status in (401, 403):
            self._accepted.pop(credential or "", None)
        if status == 401:
            self._refused = credential or ""
        elif 200 <= status < 300 and credential is None:
            self._refused = None  # the server is open after all
        elif 200 <= status < 300 and credential is not None:
            self._accepted[credential] = None
            self._accepted.move_to_end(credential)
            if len(self._accepted) > self._max_credentials:
                self._accepted.popitem(last=False)
