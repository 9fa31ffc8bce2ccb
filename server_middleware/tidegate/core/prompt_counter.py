"""What the engine's own counter of prompt tokens says of the text that we sent.

Law of this file: nothing is concluded before it is certain which prompts were counted. A stream's prompt has
been read when its first token has come. An answer in one piece shows nothing; but engines read in the order
of arrival, so once the counter rests from one reading to the next while tokens are generated and nothing
waits, all prompts that the engine knew of at the former have been read. When next to nothing is unread, what
has been counted since the last such moment is compared with the bytes sent since then.

The counter is that of prompts, whether their blocks were computed or found in the prefix cache. Nothing is
concluded while the engine works for others too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.decisions import Ask
from tidegate.core.ledger import Lease, Ledger
from tidegate.core.prompts import NO_TEXT, Text
from tidegate.core.reading import Reading

UNREAD_SHARE = 0.1  # of the bytes in question may be unread: half of it is then the greatest error


@dataclass(frozen=True, slots=True)
class Counted:
    """Prompt tokens that the engine has read, and the text they came from, by model."""

    tokens: float
    texts: dict[str, Text]


class PromptCounter:
    """The counter of one instance."""

    def __init__(self) -> None:
        self._counter: float | None = None  # at the last reading ...
        self._generated: float | None = None
        self._read_at = float("-inf")
        self._knew_all = False  # ... at which the engine knew of all our requests
        self._since: float | None = None  # counter at the last moment of certainty
        self._known_tokens = 0.0  # sent since then whose size is not estimated
        self._texts: dict[str, Text] = {}  # sent since then
        self._read_until = float("-inf")  # whole answers that started before have been read

    def started(self, lease: Lease) -> None:
        """A prompt has been sent."""
        self._add(lease, 1.0)

    def ended(self, lease: Lease, *, has_completed: bool) -> None:
        """A lease has ended; a prompt of which nothing was seen may never have been read."""
        if lease.first_token_at is None if lease.ask.streams else not has_completed:
            self._add(lease, -1.0)

    def take(self, reading: Reading, ledger: Ledger, now: float) -> Counted | None:
        """Compare, if it is certain what was counted."""
        before, counter = self._counter, reading.prompt_tokens
        present = (reading.running or 0) + (reading.waiting or 0)
        self._note_rest(reading)
        self._counter, self._generated, self._read_at = counter, reading.generation_tokens, now
        self._knew_all = present >= ledger.sequences and not reading.waiting
        if counter is None or before is None or counter < before or present > ledger.sequences:
            self._begin(counter, [])
            return None
        unread = [lease for lease in ledger.leases.values() if not self._has_been_read(lease)]
        if sum(map(_size, unread)) > UNREAD_SHARE * self._size():
            return None
        return self._conclude(counter, unread)

    def _note_rest(self, reading: Reading) -> None:
        """If nothing was read since the last reading, all that was known to the engine then has been."""
        rests = self._counter is not None and reading.prompt_tokens == self._counter
        if not (rests and self._knew_all) or reading.waiting:
            return
        if (reading.generation_tokens or 0.0) > (self._generated or 0.0):
            self._read_until = self._read_at

    def _has_been_read(self, lease: Lease) -> bool:
        if lease.ask.streams:
            return lease.first_token_at is not None
        return lease.started_at < self._read_until

    def _conclude(self, counter: float, unread: list[Lease]) -> Counted | None:
        since, texts, known = self._since, self._texts, self._known_tokens
        self._begin(counter, unread)
        if since is None or not texts:
            return None
        for ask in (lease.ask for lease in unread):
            if ask.ascii_bytes or ask.other_bytes:
                _put(texts, ask, -0.5)
            else:
                known -= 0.5 * ask.prompt_tokens
        return Counted(counter - since - known, texts)

    def _begin(self, counter: float | None, unread: list[Lease]) -> None:
        """From here on; of what is unread, half is taken as counted."""
        self._since, self._texts, self._known_tokens = counter, {}, 0.0
        for lease in unread:
            self._add(lease, 0.5)

    def _add(self, lease: Lease, times: float) -> None:
        if self._since is None:
            return  # nothing to compare with: the engine does not count, or has not been read yet
        ask = lease.ask
        if ask.ascii_bytes or ask.other_bytes:
            _put(self._texts, ask, times)
        else:
            self._known_tokens += times * ask.prompt_tokens

    def _size(self) -> float:
        return self._known_tokens + sum(map(sum, self._texts.values()))


def _put(texts: dict[str, Text], ask: Ask, times: float) -> None:
    ascii_bytes, other_bytes = texts.get(ask.model, NO_TEXT)
    ascii_bytes += times * ask.ascii_bytes
    other_bytes += times * ask.other_bytes
    texts[ask.model] = (ascii_bytes if ascii_bytes > 0.0 else 0.0, other_bytes if other_bytes > 0.0 else 0.0)


def _size(lease: Lease) -> float:
    """Its bytes; of one that has no text to estimate, its prompt tokens."""
    ask = lease.ask
    return ask.ascii_bytes + ask.other_bytes or ask.prompt_tokens
