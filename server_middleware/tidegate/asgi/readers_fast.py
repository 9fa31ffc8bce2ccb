"""The common forms of OpenAI's answers, read in about a microsecond.

An event of a stream: one choice with one piece of text. A whole answer: its usage, and how it ended.

Law of this file: it takes an event or an answer whole or leaves it to `readers`; never a part of one.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec

from tidegate.asgi.readers import CUT, MOST_TOKENS, Tokens

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _Delta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    role: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: Any = None
    message: Any = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice]
    usage: Any = None
    delta: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count


class _Ended(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class _Answer(msgspec.Struct, gc=False):
    usage: _Usage
    choices: list[_Ended] = []


_decode = msgspec.json.Decoder(_Event).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class Report(NamedTuple):
    """What an engine says of a whole answer."""

    prompt_tokens: int
    output_tokens: int
    is_cut: bool


def read_answer(payload: bytes) -> Report | None:
    """The engine's own report in a whole answer; `None` when it is not of the common form."""
    try:
        answer = _decode_answer(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    usage = answer.usage
    is_cut = any(choice.finish_reason in CUT for choice in answer.choices)
    return Report(usage.prompt_tokens, usage.completion_tokens, is_cut)


def take_event(tokens: Tokens, payload: bytes) -> bool:
    """Adds the event to `tokens`; `False`, and nothing done, when it is not of the common form."""
    try:
        event = _decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    if event.usage is not None or event.delta is not None or len(event.choices) != 1:
        return False
    choice = event.choices[0]
    if choice.finish_reason is not None or choice.token_ids is not None or choice.message is not None:
        return False
    delta = choice.delta
    if delta is None:
        tokens.text(choice.text)
    elif choice.text is not None:
        return False
    else:
        had_text = tokens.text(delta.content)
        had_text |= tokens.text(delta.reasoning_content)
        had_text |= tokens.text(delta.reasoning)
        if delta.role is not None and not had_text:
            return True  # the opening of a chat stream, before its first token
    # Without text too: half a character is a token, and shows only with the rest of it.
    tokens.counted += 1
    return True
