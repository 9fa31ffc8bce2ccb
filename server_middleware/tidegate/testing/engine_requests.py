"""Request bodies of the simulated server: bytes in, a checked `Generation` out.

Law of this file: pure. What vLLM answers with an error, this answers with an error of the same status, type
and parameter (vLLM 0.32 was asked; a test asks both again). Fields that change nothing about load
(temperature, logprobs, tools and the like) are accepted and ignored. There is no tokenizer: a token is four
bytes of UTF-8, or one id.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Kind = Literal["completions", "chat"]
BYTES_PER_TOKEN = 4
DEFAULT_COMPLETION_TOKENS = 16  # the completions API's own default; chat runs to the end of the context


class BadRequest(Exception):
    """The body cannot be served.

    `type` None stands for errors that vLLM leaves to its web framework, which have a bare `detail`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type_: str | None = "BadRequestError",
        param: str | None = None,
    ):
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type_
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the engine sees it: four bytes for each token."""

    data: bytes

    @property
    def tokens(self) -> int:
        """Its length."""
        return -(-len(self.data) // BYTES_PER_TOKEN)

    def block_identities(self, block_tokens: int) -> tuple[bytes, ...]:
        """One identity for each full block, standing for that block and all before it."""
        size = block_tokens * BYTES_PER_TOKEN
        identities, digest = [], hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.data) - size + 1, size):
            digest.update(self.data[start : start + size])
            identities.append(digest.digest())
        return tuple(identities)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request that can be served. `max_tokens` None: to the end of the context."""

    kind: Kind
    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse(kind: Kind, content_type: str, body: bytes, *, model: str, max_model_tokens: int) -> Generation:
    """Checks a body.

    Raises:
        BadRequest: as vLLM would answer it.
    """
    if content_type.lower().partition(";")[0] != "application/json":
        raise _invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    fields = _decode(body)
    if fields.get("model") not in (None, model):
        message = f"The model `{fields['model']}` does not exist. Valid aliases: {model}."
        raise BadRequest(message, status=404, type_="NotFoundError", param="model")
    stream = _boolean(fields, "stream")
    options = fields.get("stream_options") or {}
    if options and not stream:
        raise BadRequest("Stream options can only be defined when `stream=True`.", param="stream_options")
    if not isinstance(options, dict):
        raise _invalid("Input should be a valid dictionary", "body.stream_options")
    return Generation(
        kind=kind,
        prompts=_prompts(kind, fields, max_model_tokens),
        n=_count(fields, "n", 1),
        max_tokens=_max_tokens(kind, fields, max_model_tokens),
        min_tokens=_integer(fields, "min_tokens") or 0,
        ignore_eos=_boolean(fields, "ignore_eos"),
        stream=stream,
        include_usage=_boolean(options, "include_usage"),
        continuous_usage=_boolean(options, "include_usage") and _boolean(options, "continuous_usage_stats"),
    )


def _decode(body: bytes) -> dict[str, Any]:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest("There was an error parsing the body", type_=None) from error
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _invalid(f"JSON decode error: {error}", "body") from error
    if not isinstance(fields, dict):
        raise _invalid("Input should be a valid dictionary or object to extract fields from", "body")
    return fields


def _prompts(kind: Kind, fields: dict[str, Any], max_model_tokens: int) -> tuple[Prompt, ...]:
    prompts = _messages(fields) if kind == "chat" else _completion_prompts(fields)
    for prompt in prompts:
        if prompt.tokens >= max_model_tokens:
            raise BadRequest(
                f"This model's maximum context length is {max_model_tokens} tokens, "
                f"the prompt has {prompt.tokens}.",
                param="input_tokens",
            )
    return prompts


def _completion_prompts(fields: dict[str, Any]) -> tuple[Prompt, ...]:
    prompt = fields.get("prompt")
    if prompt is None or prompt == "":
        raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if prompt == []:
        raise BadRequest("You must pass at least one prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and isinstance(prompt[0], int)):
        return (_prompt(prompt),)
    if not isinstance(prompt, list):
        raise _invalid("Input should be a valid string", "body.prompt")
    return tuple(_prompt(one) for one in prompt)


def _prompt(value: object) -> Prompt:
    if isinstance(value, str) and value:
        return Prompt(data=value.encode())
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 2**32 for one in value):
        return Prompt(data=b"".join(one.to_bytes(BYTES_PER_TOKEN, "big") for one in value))
    raise _invalid("Input should be a valid string", "body.prompt")


def _messages(fields: dict[str, Any]) -> tuple[Prompt, ...]:
    messages = fields.get("messages")
    if messages is None:
        raise _invalid("Field required", "body.messages")
    if not isinstance(messages, list):
        raise _invalid("Input should be a valid list", "body.messages")
    if not messages:
        raise BadRequest("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return (Prompt(data="".join(_rendered(message) for message in messages).encode() + b"<|assistant|>"),)


def _rendered(message: object) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _invalid("Field required", "body.messages")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    return f"<|{message['role']}|>{content or ''}\n"


def _max_tokens(kind: Kind, fields: dict[str, Any], max_model_tokens: int) -> int | None:
    name = "max_tokens"
    value = _integer(fields, name)
    if kind == "chat" and fields.get("max_completion_tokens") is not None:
        value = _integer(fields, "max_completion_tokens")
    if value is None:
        return DEFAULT_COMPLETION_TOKENS if kind == "completions" else None
    if value < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {value}.", param=name)
    if value > max_model_tokens:
        raise BadRequest(
            f"max_tokens={value} cannot be greater than max_model_len={max_model_tokens}.", param=name
        )
    return value


def _count(fields: dict[str, Any], name: str, default: int) -> int:
    value = _integer(fields, name)
    if value is None:
        return default
    if value < 1:
        raise BadRequest(f"{name} must be at least 1, got {value}.")
    return value


def _integer(fields: dict[str, Any], name: str) -> int | None:
    """The field as a whole number; numerals in a string are taken, as the real server does."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or (isinstance(value, float) and number != value):
        raise _invalid("Input should be a valid integer", f"body.{name}")
    return number


def _boolean(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _invalid("Input should be a valid boolean", f"body.{name}")


def _invalid(message: str, param: str | None) -> BadRequest:
    return BadRequest(f"1 validation error: {message}", type_="Bad Request", param=param)
