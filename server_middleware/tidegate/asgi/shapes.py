"""Where each dialect keeps its prompt, its output bound and its parameters.

Law of this file: a field is read only in the dialects whose servers read it, or a caller could declare
a small bound in a field that is ignored and write as much as it likes. Read from the request classes
of vLLM 0.32 and SGLang 0.5.23, TGI's OpenAPI description, and the providers' own API references.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.asgi.classify import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One dialect. `prompts`: each item of a list is a prompt of its own; `texts`: parts of one prompt."""

    prompts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()  # JSON that a template writes into the prompt
    media: tuple[str, ...] = ()  # fields that hold nothing but media
    embedded: tuple[str, ...] = ()  # prompts that are media, tensors included: each is one of its own
    repeated: tuple[str, ...] = ()  # read again for every prompt, like the query of a reranking
    bounds: tuple[str, ...] = ()
    parameters: str | None = None  # the nested object that holds the bounds, `n` and the like
    default_output_tokens: int | None = None  # what the servers assume when no bound is sent
    always_reports_usage: bool = False
    streams_by_default: bool = False


_CHAT = Shape(
    texts=("messages", "documents", "input_ids", "mm_payload"),
    schemas=("tools", "functions", "response_format", "structured_outputs"),
    bounds=("max_completion_tokens", "max_tokens"),
)
_GENERATE = Shape(
    prompts=("text", "input_ids", "inputs", "prompt"),
    media=("image_data", "audio_data", "video_data"),
    bounds=("max_new_tokens", "max_tokens"),
    parameters="sampling_params",
    always_reports_usage=True,
)
_POOLING = Shape(
    prompts=(
        "input",
        "inputs",
        "text",
        "input_ids",
        "texts",
        "text_2",
        "data_2",
        "documents",
        "items",
        "data",
    ),
    texts=("messages", "instruction"),
    media=("images", "image_data"),
    repeated=("query", "queries", "text_1", "data_1"),
)
_ANY = Shape(
    prompts=(
        "prompt",
        "text",
        "input",
        "inputs",
        "input_ids",
        "token_ids",
        "texts",
        "documents",
        "instances",
    ),
    texts=("messages", "system", "instructions", "query", "queries", "text_1", "text_2", "items"),
    schemas=("tools", "functions"),
    media=("images", "image_data", "audio_data", "video_data"),
    bounds=("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens"),
    parameters="parameters",
)

SHAPES: dict[Dialect, Shape] = {
    Dialect.OPENAI_CHAT: _CHAT,
    Dialect.OPENAI_COMPLETIONS: Shape(
        prompts=("prompt",),
        embedded=("prompt_embeds",),
        texts=("suffix",),
        schemas=("response_format", "structured_outputs"),
        bounds=("max_tokens",),
        default_output_tokens=16,
    ),
    Dialect.OPENAI_RESPONSES: Shape(
        texts=("input", "instructions", "previous_input_messages"),
        schemas=("tools", "text"),
        bounds=("max_output_tokens",),
        always_reports_usage=True,
    ),
    Dialect.OPENAI_EMBEDDINGS: Shape(
        prompts=("input", "inputs", "texts"),
        embedded=("images",),
        texts=("messages",),
        always_reports_usage=True,
    ),
    Dialect.OPENAI_AUDIO: Shape(
        texts=("prompt", "input", "hotwords"), media=("file",), bounds=("max_completion_tokens",)
    ),
    Dialect.OPENAI_REALTIME: Shape(),
    Dialect.ANTHROPIC_MESSAGES: Shape(
        texts=("messages", "system"),
        schemas=("tools",),
        bounds=("max_tokens",),
        always_reports_usage=True,
    ),
    Dialect.VLLM_CHAT_BATCH: Shape(
        prompts=("messages",), schemas=_CHAT.schemas, bounds=_CHAT.bounds, always_reports_usage=True
    ),
    Dialect.VLLM_TOKENS: Shape(
        texts=("token_ids", "content_parts"), bounds=("max_tokens",), parameters="sampling_params"
    ),
    Dialect.VLLM_POOLING: _POOLING,
    Dialect.VLLM_DECISIONS: Shape(
        prompts=("items",),
        texts=("state", "questions", "instructions"),
        media=("images", "audio", "videos"),
        repeated=("query",),
    ),
    Dialect.COHERE_CHAT: Shape(
        texts=("messages", "documents"), schemas=("tools",), bounds=("max_tokens",), always_reports_usage=True
    ),
    Dialect.OLLAMA: Shape(
        texts=("prompt", "system", "messages", "context", "suffix"),
        schemas=("tools", "format"),
        media=("images",),
        bounds=("num_predict",),
        parameters="options",
        always_reports_usage=True,
        streams_by_default=True,
    ),
    Dialect.INVOCATIONS: _ANY,
    Dialect.SGLANG_GENERATE: _GENERATE,
    Dialect.TGI_GENERATE: Shape(
        prompts=("inputs",),
        bounds=("max_new_tokens",),
        parameters="parameters",
        always_reports_usage=True,
        streams_by_default=True,
    ),
    Dialect.UNKNOWN_POST: _ANY,
}
