"""Is this request guarded, and which dialect does it speak?

Law of this file: matching is on what the app behind us could route, so it errs on the side of
guarding. Whatever prefix a Mount, a root path or a proxy puts in front, the last segments of the
path decide; blanks, doubled or trailing slashes, dot segments, letter case, matrix parameters and
left-over percent signs change nothing. (Starlette, for one, routes `/v1/completions%0A` too.)

The routes were read from vLLM 0.32, SGLang 0.5.23 and the OpenAPI description of TGI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, field_validator

from tidegate.asgi.types import Scope
from tidegate.option_types import Texts


class Dialect(str, Enum):
    """Whose request body and answer it is."""

    OPENAI_COMPLETIONS = "openai_completions"
    OPENAI_CHAT = "openai_chat"
    OPENAI_RESPONSES = "openai_responses"
    OPENAI_EMBEDDINGS = "openai_embeddings"
    OPENAI_AUDIO = "openai_audio"
    OPENAI_REALTIME = "openai_realtime"
    ANTHROPIC_MESSAGES = "anthropic_messages"
    VLLM_CHAT_BATCH = "vllm_chat_batch"
    VLLM_TOKENS = "vllm_tokens"  # token ids in, token ids out
    VLLM_POOLING = "vllm_pooling"  # pooling, scoring, classification, reranking
    VLLM_DECISIONS = "vllm_decisions"  # structured decisions, generative scoring
    COHERE_CHAT = "cohere_chat"
    OLLAMA = "ollama"
    INVOCATIONS = "invocations"  # SageMaker's and Vertex's one door for every kind of body
    SGLANG_GENERATE = "sglang_generate"  # also what TGI and vLLM's plain server call /generate
    TGI_GENERATE = "tgi_generate"
    UNKNOWN_POST = "unknown_post"


@dataclass(frozen=True, slots=True)
class Route:
    """What was matched. `label` is one of a bounded set of strings, fit for a metric."""

    dialect: Dialect
    generates: bool
    label: str


def _routes(dialect: Dialect, generates: bool, *labels: str) -> dict[str, Route]:
    return {label: Route(dialect, generates, label) for label in labels}


_KNOWN: dict[str, Route] = {
    **_routes(Dialect.OPENAI_CHAT, True, "/chat/completions"),
    **_routes(Dialect.OPENAI_COMPLETIONS, True, "/completions"),
    **_routes(Dialect.OPENAI_RESPONSES, True, "/v1/responses"),
    **_routes(Dialect.OPENAI_EMBEDDINGS, False, "/embeddings", "/v2/embed"),
    **_routes(Dialect.OPENAI_AUDIO, True, "/audio/transcriptions", "/audio/translations", "/audio/speech"),
    **_routes(Dialect.ANTHROPIC_MESSAGES, True, "/v1/messages"),
    **_routes(Dialect.VLLM_CHAT_BATCH, True, "/chat/completions/batch"),
    **_routes(Dialect.VLLM_TOKENS, True, "/inference/v1/generate"),
    **_routes(Dialect.VLLM_POOLING, False, "/pooling", "/classify", "/score", "/rerank", "/encode"),
    **_routes(Dialect.VLLM_DECISIONS, False, "/v1/systemone", "/v1/decisions", "/generative_scoring"),
    **_routes(Dialect.COHERE_CHAT, True, "/cohere/v2/chat"),
    **_routes(Dialect.OLLAMA, True, "/api/chat", "/api/generate"),
    **_routes(Dialect.INVOCATIONS, True, "/invocations", "/vertex_generate"),
    **_routes(Dialect.SGLANG_GENERATE, True, "/generate"),
    **_routes(Dialect.TGI_GENERATE, True, "/generate_stream"),
}
_CACHED_PATH_CHARACTERS = 256  # so that callers cannot fill the cache with long strings
_LONGEST_PATH_CHARACTERS = 4096  # only the tail of a longer path is looked at
_REALTIME = Route(Dialect.OPENAI_REALTIME, True, "/v1/realtime")
_UNKNOWN = Route(Dialect.UNKNOWN_POST, True, "unknown")
_GUARDED_METHODS = frozenset({"POST", "PUT", "PATCH"})  # SGLang takes PUT for POST

_EXEMPT_POSTS = frozenset(
    {"tokenize", "detokenize", "chat_tokenize", "count_tokens", "render", "derender"}
    | {"cancel", "abort", "abort_request", "abort_requests", "ping", "health", "metrics", "show"}
    | {"load_lora_adapter", "unload_lora_adapter", "load_lora_adapter_from_tensors", "set_lora"}
    | {"merge_lora_weights", "unmerge_lora_weights", "open_session", "close_session"}
    | {"sleep", "wake_up", "pause", "resume", "pause_generation", "continue_generation", "slow_down"}
    | {"release_memory_occupation", "resume_memory_occupation", "release_kv_cache_memory"}
    | {"start_profile", "stop_profile", "configure_logging", "set_trace_level", "freeze_gc"}
    | {"flush_cache", "reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "collective_rpc"}
    | {"scale_elastic_ep", "is_scaling_elastic_ep", "pd_role_switch", "set_internal_state"}
    | {"parse_function_call", "separate_reasoning", "weight_checker", "weights_checker"}
)
_EXEMPT_WORDS = ("weight", "corpus", "hicache", "expert_distribution", "fault_tolerance")
"""Last segments of POST routes that load no KV cache (administration, tokenizing), and words that mark
whole families of them. They matter only under `guard_unknown_posts`: a gate that queued the engine's own
`resume` could never open again."""


def segments(path: str) -> tuple[str, ...]:
    """The path as an app could read it: decoded, lower case, no empty, dot or parameter parts."""
    if len(path) <= _CACHED_PATH_CHARACTERS:
        return _cached_segments(path)
    return _segments(path[-_LONGEST_PATH_CHARACTERS:])


def _segments(path: str) -> tuple[str, ...]:
    for _ in range(2):  # the server has decoded once; a proxy or an app may decode again
        if "%" not in path:
            break
        path = unquote(path)
    parts: list[str] = []
    for raw in re.split(r"[/\\]", path.lower()):
        part = "".join(raw.split(";", 1)[0].split())
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


_cached_segments = lru_cache(maxsize=1024)(_segments)


class GuardOptions(BaseModel):
    """What is guarded besides the inference routes known here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    guard_unknown_posts: bool = False
    """Also guard POST, PUT and PATCH requests to paths nobody here has heard of (TGI's `POST /` is one)."""
    extra_guarded: Texts = ()
    """Further guarded paths, e.g. `/predict`; the last segments are compared."""
    exempt: Texts = ()
    """Paths never guarded; these win over everything else."""

    @field_validator("extra_guarded", "exempt")
    @classmethod
    def _name_a_segment(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not segments(path):
                raise ValueError(f"{path!r} names no path segment: write e.g. '/predict'.")
        return paths


class RouteTable:
    """Decides by method and path."""

    def __init__(self, options: GuardOptions | None = None) -> None:
        options = options or GuardOptions()
        self._guard_unknown_posts = options.guard_unknown_posts
        self._known = {segments(label): route for label, route in _KNOWN.items()}
        for path in options.extra_guarded:
            key = segments(path)
            self._known.setdefault(key, Route(Dialect.UNKNOWN_POST, True, "/" + "/".join(key)))
        self._exempt = frozenset(map(segments, options.exempt))
        self._longest = max(map(len, (*self._known, *self._exempt)))
        self._remembered = lru_cache(maxsize=1024)(self._match)

    def match(self, scope: Scope) -> Route | None:
        """The route that is guarded, or `None` for everything that passes untouched."""
        path: str = scope.get("path", "")
        match = self._remembered if len(path) <= _CACHED_PATH_CHARACTERS else self._match
        return match(scope.get("type", ""), scope.get("method", "GET"), path)

    def _match(self, kind: str, method: str, path: str) -> Route | None:
        if kind == "http":
            if method.upper() not in _GUARDED_METHODS:
                return None
        elif kind != "websocket":
            return None
        parts = segments(path)
        tails = [parts[-count:] for count in range(min(len(parts), self._longest), 0, -1)]
        if not self._exempt.isdisjoint(tails):
            return None
        if kind == "websocket":
            return _REALTIME if parts[-1:] == ("realtime",) else None
        return self._match_post(parts, tails)

    def _match_post(self, parts: tuple[str, ...], tails: list[tuple[str, ...]]) -> Route | None:
        for tail in tails:  # longest first
            if (route := self._known.get(tail)) is not None:
                return route
        return _UNKNOWN if self._guard_unknown_posts and not _is_administration(parts) else None


def _is_administration(parts: tuple[str, ...]) -> bool:
    if not parts:
        return False
    return parts[-1] in _EXEMPT_POSTS or any(word in part for part in parts for word in _EXEMPT_WORDS)
