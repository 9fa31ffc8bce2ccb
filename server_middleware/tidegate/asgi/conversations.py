"""How long the conversations are that an engine goes on with by itself.

Law of this file: a request that names the response before it brings its new words only; the engine puts all
that was said before into the prompt. What it reported of that response says how much that is. Memory is
bounded: the longest unused is forgotten, and a conversation nothing is known of counts as a new one.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_REMEMBERED = 10_000
LONGEST_ID = 128


class Conversations:
    """Tokens by the id of the last response."""

    def __init__(self, most_remembered: int = MOST_REMEMBERED) -> None:
        self._most_remembered = most_remembered
        self._tokens: OrderedDict[str, int] = OrderedDict()

    def tokens_before(self, response_id: str | None) -> int:
        """Tokens of the prompt and the answer of that response, as its engine reported them; 0 if unknown."""
        if response_id is None or response_id not in self._tokens:
            return 0
        self._tokens.move_to_end(response_id)
        return self._tokens[response_id]

    def observed(self, response_id: str, tokens: int) -> None:
        """A response has ended, with so many tokens in its prompt and its answer."""
        if len(response_id) > LONGEST_ID:
            return
        self._tokens[response_id] = tokens
        self._tokens.move_to_end(response_id)
        if len(self._tokens) > self._most_remembered:
            self._tokens.popitem(last=False)
