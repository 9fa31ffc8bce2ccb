"""What the app behind us thinks of credentials nobody configured here.

Law of this file: a credential becomes a tenant of its own only when the app has accepted it on a path on
which it is known to refuse others. Where it refuses nobody any random string would prove itself, so there
it proves nothing; and since an app may check keys on some of its paths only (vLLM does), what one path
shows says nothing of another. Memory is bounded; what is forgotten must prove itself again.
"""

from __future__ import annotations

from collections import OrderedDict

Path = tuple[str, ...]
"""As `classify.segments` reads it, so that no spelling makes a path of its own."""

MAX_PATHS = 256
MAX_PATHS_EACH = 8  # remembered of one credential


class Proofs:
    """Learns from the statuses of the app's own answers.

    Args:
        max_credentials: accepted credentials remembered, the least recently seen forgotten first.
    """

    def __init__(self, max_credentials: int = 10_000) -> None:
        self._max_credentials = max_credentials
        self._accepted: OrderedDict[str, tuple[Path, ...]] = OrderedDict()
        # By path, somebody the app has refused there ("": without credentials); `None`: nobody. Those that
        # have never been answered 2xx stand in front and go first: any made-up path may be answered 401.
        self._refused: OrderedDict[Path, str | None] = OrderedDict()

    def refuses(self, path: Path) -> bool:
        """Whether the app has turned somebody away there, and let nobody in without credentials since."""
        return self._refused.get(path) is not None

    def is_proven(self, credential: str) -> bool:
        """Whether the app accepts this credential on a path where it refuses others."""
        for path in self._accepted.get(credential, ()):
            if self._refused.get(path) not in (None, credential):
                self._accepted.move_to_end(credential)
                return True
        return False

    def observed(self, credential: str | None, path: Path, status: int) -> None:
        """The app answered `status` there to a caller with this credential (hash), or with none.

        Only 401 shows that it checks credentials; a 403 may be about anything.
        """
        if status in (401, 403):
            self._accepted.pop(credential or "", None)
        if status == 401:
            self._on_refused(credential or "", path)
        elif 200 <= status < 300:
            self._on_answered(credential, path)

    def _on_refused(self, credential: str, path: Path) -> None:
        is_new = path not in self._refused
        self._refused[path] = credential
        if is_new:
            self._refused.move_to_end(path, last=False)
            self._forget_paths()

    def _on_answered(self, credential: str | None, path: Path) -> None:
        refused = None if credential is None else self._refused.get(path)  # without any: it is open after all
        self._refused[path] = refused
        self._refused.move_to_end(path)
        self._forget_paths()
        if credential is None:
            return
        known = self._accepted.get(credential, ())
        if path not in known:
            self._accepted[credential] = (*known, path)[-MAX_PATHS_EACH:]
        self._accepted.move_to_end(credential)
        if len(self._accepted) > self._max_credentials:
            self._accepted.popitem(last=False)

    def _forget_paths(self) -> None:
        if len(self._refused) > MAX_PATHS:
            self._refused.popitem(last=False)
