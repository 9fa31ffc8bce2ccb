"""The cost of an ordinary OpenAI request, in a few microseconds.

Law of this file: the very `Cost` that `cost` would give, or none at all. Ordinary is a body whose fields
are all of those named here and of their usual types; everything else is left to the general way.
"""

from __future__ import annotations

from typing import Any

from tidegate.asgi.classify import Dialect
from tidegate.asgi.decode import Fields
from tidegate.asgi.tally import MOST_PARTS, Tally

LONGEST_TOKEN_BYTES = 512  # no vocabulary we know of has a longer one; certain bounds divide by it
_ROLE = frozenset({"role", "content", "name"})
_FREE = frozenset(  # nothing of the cost depends on them
    {"model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "user"}
    | {"presence_penalty", "frequency_penalty", "repetition_penalty", "metadata", "store", "stop_token_ids"}
)
_CHAT = _FREE | {"messages", "max_tokens", "max_completion_tokens"}
_COMPLETION = _FREE | {"prompt", "max_tokens"}


def plain_prompt(fields: Fields, dialect: Dialect) -> tuple[Tally, int] | None:
    """The prompt's text and its certain tokens, `None` where the body is not ordinary."""
    if dialect is Dialect.OPENAI_CHAT:
        messages = fields.get("messages")
        return _conversation(messages) if fields.keys() <= _CHAT and type(messages) is list else None
    if dialect is Dialect.OPENAI_COMPLETIONS and fields.keys() <= _COMPLETION:
        prompt = fields.get("prompt")
        if type(prompt) is str:
            tally = Tally()
            tally.text(prompt)
            return tally, len(prompt.strip()) // LONGEST_TOKEN_BYTES
    return None


def _conversation(messages: list[Any]) -> tuple[Tally, int] | None:
    tally, certain = Tally(), 0
    if len(messages) > MOST_PARTS:
        return None
    for message in messages:
        if type(message) is not dict or not message.keys() <= _ROLE:
            return None
        for text in message.values():
            if type(text) is not str:
                return None
            tally.text(text)
        if message.get("role") == "user":
            certain += len(message.get("content", "").strip())
    return tally, certain // LONGEST_TOKEN_BYTES


def plain_bound(fields: Fields, names: tuple[str, ...]) -> tuple[bool, int | None]:
    """(whether the declared bounds are plain numbers, the largest of them or `None` where there is none)."""
    largest: int | None = None
    for name in names:
        bound = fields.get(name)
        if bound is None and name not in fields:
            continue
        if type(bound) is not int or not 0 <= bound <= 10**9:
            return False, None
        largest = bound if largest is None or bound > largest else largest
    return True, largest
