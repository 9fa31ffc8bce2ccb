"""The cost of an ordinary OpenAI request, in a few microseconds.

Law of this file: the very `Cost` that `cost_of` would give, or none at all. Ordinary is a body whose fields
are all of those named here and of their usual types; the decoder itself sees to that, so no object is made
that is only looked at once. Everything else is left to the general way. Of the fields a policy looks at
(`fields`) none is ordinary.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.cost import LONGEST_TOKEN_BYTES, Cost, short_name
from tidegate.asgi.decode import as_bool, as_fields
from tidegate.asgi.shapes import SHAPES
from tidegate.asgi.tally import MOST_PARTS, Tally

_Bound = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_PARTS_EACH = 4  # of a message in the general way's count: itself and its fields


class _Message(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    role: str = ""
    content: str = ""
    name: str = ""


class _Body(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What both dialects know. Of `Any` is what nothing of the cost depends on, and how usage is told."""

    model: str | None = None
    stream: bool | None = None
    stream_options: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    stop: Any = None
    stop_token_ids: Any = None
    seed: Any = None
    user: Any = None
    metadata: Any = None
    store: Any = None


class _Chat(_Body, kw_only=True):
    messages: list[_Message]
    max_tokens: _Bound | None = None
    max_completion_tokens: _Bound | None = None


class _Completion(_Body, kw_only=True):
    prompt: str
    max_tokens: _Bound | None = SHAPES[Dialect.OPENAI_COMPLETIONS].default_output_tokens


ORDINARY = frozenset({*_Chat.__struct_fields__, *_Completion.__struct_fields__})
_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode


def plain_cost(data: bytes, route: Route) -> Cost | None:
    """The cost of an ordinary body, `None` where it is not one."""
    dialect = route.dialect
    try:
        if dialect is Dialect.OPENAI_CHAT:
            return _of_chat(_decode_chat(data))
        if dialect is Dialect.OPENAI_COMPLETIONS:
            body = _decode_completion(data)
            return _cost(body, body.prompt, len(body.prompt.strip()), body.max_tokens)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    return None


def _of_chat(body: _Chat) -> Cost | None:
    texts: list[str] = []
    certain, messages = 0, body.messages
    if len(messages) * _PARTS_EACH > MOST_PARTS:
        return None
    for message in messages:
        role, content = message.role, message.content
        texts += role, content, message.name
        if role == "user":
            certain += len(content.strip())
    bound, other = body.max_tokens, body.max_completion_tokens
    if bound is None or (other is not None and other > bound):
        bound = other
    return _cost(body, "".join(texts), certain, bound)


def _cost(body: _Body, text: str, certain: int, bound: int | None) -> Cost:
    tally = Tally()
    tally.text(text)
    options = body.stream_options
    return Cost(
        ascii_bytes=tally.ascii_bytes,
        other_bytes=tally.other_bytes,
        prompt_tokens_floor=certain // LONGEST_TOKEN_BYTES,
        max_output_tokens=bound,
        stream=body.stream is True,
        include_usage=options is not None and as_bool(as_fields(options).get("include_usage")),
        model=short_name(body.model),
    )
