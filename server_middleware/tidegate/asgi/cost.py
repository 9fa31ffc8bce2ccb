"""What a request will cost, from its body alone, without a tokenizer.

Law of this file: total. Any bytes give a `Cost`; what cannot be read is priced by its length and goes
to the app unchanged, for the app to refuse. Text is measured in bytes (ASCII and other apart, since
Chinese takes a token or more for each character), token ids are counted, media are priced per item.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.decode import Fields, as_bool, as_fields, as_int
from tidegate.asgi.hints import continues, length_hint, response_before, session_key
from tidegate.asgi.shapes import SHAPES, Shape
from tidegate.asgi.tally import MOST_PARTS, Tally, are_texts

LONGEST_TOKEN_BYTES = 512  # no vocabulary we know of has a longer one; certain bounds divide by it
BYTES_PER_TOKEN = 3.0  # prior for ASCII text
OTHER_BYTES_PER_TOKEN = 2.5  # prior for the rest: three bytes a Chinese character, 1.2 tokens
TOKENS_PER_MEDIA_ITEM = 1000.0  # prior for an image or a clip
_LARGEST_TEXT_BYTES = 4 * 1024 * 1024
_BYTES_PER_MEDIA_ITEM = 1024 * 1024  # guess for a body that is not looked into
MOST_PARAMETERS = 4096  # objects of sampling parameters in one body, one a prompt
_MAX_REPEATED = 1000  # prompts for which one text is counted again
_MAX_SEQUENCES = 10**6
_PARALLEL = frozenset({"n", "best_of", "beam_width"})


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a body. Token figures that need a tokenizer are left to `prompt_tokens`."""

    ascii_bytes: int = 0
    other_bytes: int = 0  # of UTF-8 text outside ASCII
    token_ids: int = 0
    media_items: int = 0
    media_bytes: int = 0
    prompt_tokens_floor: int = 0  # of the largest single prompt, certain whatever the tokenizer
    max_output_tokens: int | None = None  # per sequence
    prompts: int = 1
    sequences: int = 1
    stream: bool = False
    include_usage: bool = False
    background: bool = False
    model: str | None = None
    service_tier: str | None = None
    length_hint: str = ""  # what, besides the model, the length of the answer depends on
    session: str | None = None
    continues: bool = False  # the engine has kept more of the prompt than the body says
    response_before: str | None = None  # whose conversation goes on
    unparsed: bool = False  # wholly or, of a body of too many parts, in part: see `at_least`

    def prompt_tokens(
        self,
        bytes_per_token: float = BYTES_PER_TOKEN,
        tokens_per_media_item: float = TOKENS_PER_MEDIA_ITEM,
    ) -> float:
        """The estimate; a learnt `bytes_per_token` scales both kinds of text alike."""
        scale = BYTES_PER_TOKEN / bytes_per_token
        text = self.ascii_bytes / BYTES_PER_TOKEN + self.other_bytes / OTHER_BYTES_PER_TOKEN
        return self.token_ids + text * scale + self.media_items * tokens_per_media_item


def unparsed(size_bytes: int) -> Cost:
    """The cost of a body that was not or cannot be read.

    Its length, as if it were all text; but so much text fits no context window, and what is larger is
    taken to be media.
    """
    if size_bytes <= _LARGEST_TEXT_BYTES:
        return Cost(ascii_bytes=size_bytes, unparsed=True)
    items = -(-size_bytes // _BYTES_PER_MEDIA_ITEM)
    return Cost(media_items=items, media_bytes=size_bytes, unparsed=True)


def at_least(cost: Cost, size_bytes: int) -> Cost:
    """The cost of a body that was not looked at to its end: no less than by its length."""
    least = unparsed(size_bytes)
    return msgspec.structs.replace(
        cost,
        ascii_bytes=max(cost.ascii_bytes, least.ascii_bytes),
        media_items=max(cost.media_items, least.media_items),
        media_bytes=max(cost.media_bytes, least.media_bytes),
    )


def cost_of(fields: Fields, route: Route) -> Cost:
    """The cost of a decoded body."""
    shape = SHAPES[route.dialect]
    tally = Tally()
    prompts, floor = _prompt(fields, shape, tally)
    parameters = _parameters(fields, shape)
    sequences = prompts * max((_parallel(each) for each in parameters), default=1)
    return Cost(
        ascii_bytes=tally.ascii_bytes,
        other_bytes=tally.other_bytes,
        token_ids=tally.token_ids,
        media_items=tally.media_items,
        media_bytes=tally.media_bytes,
        prompt_tokens_floor=_truncated(floor, fields),
        max_output_tokens=_bound(fields, parameters, shape) if route.generates else 0,
        prompts=prompts,
        sequences=min(sequences, _MAX_SEQUENCES),
        stream=_streams(fields, route, shape),
        include_usage=_includes_usage(fields, shape),
        background=route.dialect is Dialect.OPENAI_RESPONSES and as_bool(fields.get("background")),
        model=short_name(fields.get("model")),
        service_tier=short_name(fields.get("service_tier")),
        length_hint=length_hint(fields, parameters[-1]) if route.generates else "",
        session=session_key(fields),
        continues=continues(fields),
        response_before=response_before(fields),
        unparsed=tally.is_cut,
    )


def _includes_usage(fields: Fields, shape: Shape) -> bool:
    options = fields.get("stream_options")
    return shape.always_reports_usage or (
        options is not None and as_bool(as_fields(options).get("include_usage"))
    )


def short_name(value: object) -> str | None:
    """A short name that can be logged: lone surrogates, which JSON allows, are replaced."""
    if isinstance(value, str) and value.isascii():
        return value[:256]
    return value[:256].encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else None


def _prompt(fields: Fields, shape: Shape, tally: Tally) -> tuple[int, int]:
    """Tallies the prompt; returns how many prompts there are, and what the largest certainly holds."""
    prompts, floor = 0, 0
    for name in shape.prompts:
        value = fields.get(name)
        if value is None:
            continue
        items = value if isinstance(value, list) and value and type(value[0]) is not int else [value]
        prompts += len(items)
        if are_texts(items):  # a batch: thousands of them must not cost a step each
            tally.text("".join(items))
            floor = max(floor, max(map(len, map(str.strip, items))) // LONGEST_TOKEN_BYTES)
            continue
        tally.parts += len(items)
        for item in items[: MOST_PARTS + 1]:
            tally.walk(item)
            floor = max(floor, _certain_tokens(item))
    prompts += _embedded(fields, shape, tally)
    for name in shape.repeated:
        if fields.get(name):
            once = Tally()
            once.walk(fields[name])
            tally.add(once, times=min(max(prompts, 1), _MAX_REPEATED))
    for name in shape.texts:
        if (value := fields.get(name)) is not None:
            tally.walk(value)
            floor = max(floor, _certain_tokens(value))
    for name in shape.schemas:
        if fields.get(name):
            tally.schema(fields[name])
    for name in shape.media:
        tally.media(fields.get(name))
    return max(prompts, 1), floor


def _embedded(fields: Fields, shape: Shape, tally: Tally) -> int:
    """Tallies prompts that are media; how many there are."""
    given = [value for name in shape.embedded if (value := fields.get(name))]
    for value in given:
        tally.media(value)
    return sum(len(value) if isinstance(value, list) else 1 for value in given)


def _certain_tokens(value: object) -> int:
    """A bound that holds for every tokenizer and chat template.

    Token ids count in full. Templates may trim blanks and drop earlier thinking and tools, so of a
    conversation only what users said counts.
    """
    if isinstance(value, str):
        return len(value.strip()) // LONGEST_TOKEN_BYTES
    if not isinstance(value, list) or not value:
        return 0
    if type(value[0]) is int:
        return len(value)
    if len(value) > MOST_PARTS:
        return 0
    said = (as_fields(message) for message in value)
    contents = (message.get("content") for message in said if message.get("role") == "user")
    return (
        sum(len(content.strip()) for content in contents if isinstance(content, str)) // LONGEST_TOKEN_BYTES
    )


def _truncated(floor: int, fields: Fields) -> int:
    """The engine may be asked to cut the prompt; then little is certain."""
    if fields.get("truncation") == "auto":
        return min(floor, 1)
    limit = fields.get("truncate_prompt_tokens")
    if limit is None:
        return floor
    return min(floor, max(as_int(limit) or 1, 1))


def _parameters(fields: Fields, shape: Shape) -> list[Fields]:
    """The objects that may hold bounds, `n` and the like: the body, then the nested ones."""
    found: list[Fields] = [fields]
    names = {shape.parameters, "parameters" if shape.parameters == "sampling_params" else shape.parameters}
    for name in sorted(filter(None, names)):
        value = fields.get(name)
        # The field policy refuses longer lists.
        listed = value[:MOST_PARAMETERS] if isinstance(value, list) else [value]
        found += [each for each in listed if isinstance(each, dict)]
    return found


def _bound(fields: Fields, parameters: list[Fields], shape: Shape) -> int | None:
    """The largest declared bound, since servers differ in which of two they obey."""
    declared = [as_int(each[name]) for each in parameters for name in shape.bounds if name in each]
    if not declared:
        return shape.default_output_tokens
    return max((bound for bound in declared if bound is not None and bound >= 0), default=None)


def _parallel(parameters: Fields) -> int:
    """Answers generated side by side for one prompt."""
    if _PARALLEL.isdisjoint(parameters):
        return 1
    figures = (as_int(parameters.get(name)) for name in _PARALLEL)
    return max((figure for figure in figures if figure is not None and figure > 0), default=1)


def _streams(fields: Fields, route: Route, shape: Shape) -> bool:
    if route.dialect is Dialect.TGI_GENERATE:
        return True
    stream: Any = fields.get("stream")
    return shape.streams_by_default if stream is None else as_bool(stream)
