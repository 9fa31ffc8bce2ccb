"""What one event of a stream, or one whole answer, says about its output: per dialect.

Law of this file: an event adds text or tokens, may report usage, may say that the bound cut it off.
Events of unknown form add nothing; nothing here raises for any JSON value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.asgi.classify import Dialect
from tidegate.asgi.text import mixed_bytes

_TEXT_FIELDS = ("content", "text", "reasoning_content", "reasoning", "refusal")
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
_MOST_SEQUENCES = 4096
MOST_TOKENS = 10**9  # no answer has more; and figures of hundreds of digits do not even fit into a float


class Tokens:
    """What has gone by so far. `usage`, once reported, is the engine's own and final word."""

    __slots__ = (
        "ascii_bytes",
        "counted",
        "is_cut",
        "is_stream",
        "other_bytes",
        "per_sequence",
        "reported",
        "response_id",
        "sequences",
        "usage",
    )

    def __init__(self, sequences: int = 1) -> None:
        self.sequences = sequences
        self.is_stream = False
        self.ascii_bytes = 0
        self.other_bytes = 0
        self.counted = 0  # events with text, or token ids where they are sent: at least so many tokens
        self.reported = 0  # running figure of the engine, where it sends one
        self.per_sequence: dict[Any, int] = {}
        self.usage: tuple[int | None, int | None] | None = None
        self.is_cut = False
        self.response_id: str | None = None  # by which a later request may name this answer

    def text(self, text: object) -> bool:
        """Adds text; says whether there was any."""
        if not isinstance(text, str) or not text:
            return False
        if text.isascii():
            self.ascii_bytes += len(text)
        else:
            ascii_bytes, other_bytes = mixed_bytes(text)
            self.ascii_bytes += ascii_bytes
            self.other_bytes += other_bytes
        return True

    def event(self, *texts: object) -> None:
        """Adds one event's text, in whichever of its fields it came."""
        had_text = False
        for text in texts:
            had_text |= self.text(text)
        self.counted += had_text

    def finish(self, reason: object) -> None:
        """Notes why a sequence ended."""
        if isinstance(reason, dict):
            reason = reason.get("type") or reason.get("reason")
        if isinstance(reason, str) and reason in CUT:
            self.is_cut = True

    def is_one_text(self, ascii_bytes: int) -> bool:
        """Whether one token's text of so many bytes is all that has gone by."""
        return (
            (self.ascii_bytes, self.other_bytes, self.counted, self.reported) == (ascii_bytes, 0, 1, 0)
            and self.usage is None
            and not self.per_sequence
            and not self.is_cut
        )

    def report(self, prompt: object, output: object) -> None:
        """Takes over the engine's usage; a figure that is missing keeps its earlier value."""
        before = self.usage or (None, None)
        after = (token_count(prompt, before[0]), token_count(output, before[1]))
        if after != (None, None):
            self.usage = after


Reader = Callable[[Tokens, Mapping[str, Any]], None]


def token_count(value: object, otherwise: int | None = None) -> int | None:
    """A number of tokens as somebody reports it, where it can be one."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else otherwise


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _openai(tokens: Tokens, event: Mapping[str, Any]) -> None:
    """Chat, completions, transcriptions and token streams; one choice a sequence."""
    choices = _objects(event.get("choices"))
    for choice in choices:
        _choice(tokens, choice)
    usage = event.get("usage")
    is_of_one_choice = tokens.is_stream and choices and tokens.sequences > 1
    if isinstance(usage, dict) and not is_of_one_choice:
        tokens.report(usage.get("prompt_tokens"), usage.get("completion_tokens"))
    tokens.event(event.get("delta"))  # transcript.text.delta


def _choice(tokens: Tokens, choice: Mapping[str, Any]) -> None:
    delta = _object(choice.get("delta")) or _object(choice.get("message")) or choice
    had_text = False
    for name in _TEXT_FIELDS:
        if name in delta:
            had_text |= tokens.text(delta[name])
    for call in _objects(delta.get("tool_calls")):
        had_text |= tokens.text(_object(call.get("function")).get("arguments"))
    ids = choice.get("token_ids")
    tokens.counted += (
        len(ids) if isinstance(ids, list) else had_text or _is_silent_token(tokens, choice, delta)
    )
    if choice.get("finish_reason") is not None:
        tokens.finish(choice["finish_reason"])


def _is_silent_token(tokens: Tokens, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> bool:
    """Whether an event without text stands for a token: half a character shows only with the rest of it."""
    return tokens.is_stream and choice.get("finish_reason") is None and "role" not in delta


def _responses(tokens: Tokens, event: Mapping[str, Any]) -> None:
    kind = event.get("type")
    if isinstance(kind, str) and kind.endswith(".delta"):
        tokens.event(event.get("delta"))
        return
    response = _object(event.get("response")) or event
    name = response.get("id")
    tokens.response_id = name if isinstance(name, str) else tokens.response_id
    usage = _object(response.get("usage"))
    tokens.report(usage.get("input_tokens"), usage.get("output_tokens"))
    tokens.finish(response.get("incomplete_details"))


def _anthropic(tokens: Tokens, event: Mapping[str, Any]) -> None:
    delta = _object(event.get("delta"))
    if event.get("type") == "content_block_delta":
        tokens.event(delta.get("text"), delta.get("thinking"), delta.get("partial_json"))
        return
    usage = _object(event.get("usage")) or _object(_object(event.get("message")).get("usage"))
    prompt = usage.get("input_tokens")
    if type(prompt) is int:  # Anthropic counts what a cache served apart; it fills the KV cache all the same
        cached = (usage.get(f"cache_{kind}_input_tokens") for kind in ("read", "creation"))
        prompt += sum(figure for figure in cached if type(figure) is int)
    if event.get("type") != "message_start" or prompt:
        tokens.report(prompt, usage.get("output_tokens"))
    tokens.finish(delta.get("stop_reason") or event.get("stop_reason"))


def _cohere(tokens: Tokens, event: Mapping[str, Any]) -> None:
    delta = _object(event.get("delta"))
    message = _object(delta.get("message"))
    content = _object(message.get("content"))
    calls = _object(_object(message.get("tool_calls")).get("function"))
    tokens.event(content.get("text"), content.get("thinking"), calls.get("arguments"))
    usage = _object(delta.get("usage")) or _object(event.get("usage"))
    figures = _object(usage.get("tokens")) or _object(usage.get("billed_units"))
    tokens.report(_whole(figures.get("input_tokens")), _whole(figures.get("output_tokens")))
    tokens.finish(delta.get("finish_reason") or event.get("finish_reason"))


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and 0 <= value < 1e12 else value


def _sglang(tokens: Tokens, event: Mapping[str, Any]) -> None:
    """Each event repeats its sequence's running total; also vLLM's plain server and TGI on the same path."""
    meta = event.get("meta_info")
    if not isinstance(meta, dict):
        _tgi(tokens, event)
        return
    key = event.get("index", meta.get("id"))
    total = token_count(meta.get("completion_tokens"))
    if (
        total is not None
        and isinstance(key, (int, str, type(None)))
        and len(tokens.per_sequence) < _MOST_SEQUENCES
    ):
        tokens.per_sequence[key] = max(tokens.per_sequence.get(key, 0), total)
        tokens.reported = sum(tokens.per_sequence.values())
    prompt = meta.get("prompt_tokens") if tokens.sequences == 1 else None
    tokens.report(prompt, tokens.reported)
    tokens.finish(meta.get("finish_reason"))


def _tgi(tokens: Tokens, event: Mapping[str, Any]) -> None:
    token = event.get("token")
    if isinstance(token, dict):
        tokens.text(token.get("text"))
        tokens.counted += 1
    details = _object(event.get("details"))
    if details:
        tokens.report(None, details.get("generated_tokens"))
        tokens.finish(details.get("finish_reason"))


def _ollama(tokens: Tokens, event: Mapping[str, Any]) -> None:
    message = _object(event.get("message"))
    tokens.event(message.get("content"), message.get("thinking"), event.get("response"))
    if event.get("done"):
        tokens.report(event.get("prompt_eval_count"), event.get("eval_count"))
        tokens.finish(event.get("done_reason"))


def _any(tokens: Tokens, event: Mapping[str, Any]) -> None:
    """Doors that take every kind of body answer in every kind."""
    if "choices" in event or "usage" in event:
        _openai(tokens, event)
    else:
        _sglang(tokens, event)


_READERS: dict[Dialect, Reader] = {
    Dialect.OPENAI_RESPONSES: _responses,
    Dialect.ANTHROPIC_MESSAGES: _anthropic,
    Dialect.COHERE_CHAT: _cohere,
    Dialect.OLLAMA: _ollama,
    Dialect.SGLANG_GENERATE: _sglang,
    Dialect.TGI_GENERATE: _tgi,
    Dialect.INVOCATIONS: _any,
    Dialect.UNKNOWN_POST: _any,
    Dialect.VLLM_DECISIONS: _responses,
}


def reader_for(dialect: Dialect) -> Reader:
    """How events and answers of that dialect are read."""
    return _READERS.get(dialect, _openai)
