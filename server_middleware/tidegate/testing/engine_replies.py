"""Replies of the simulated server: JSON bodies and SSE events in the shape vLLM 0.32 gives them.

Law of this file: pure; values in, bytes out. A test compares the keys with a running vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.testing.engine_requests import BadRequest, Generation

WORDS = ("tide", "gate", "flood", "water", "level", "harbour", "sluice", "basin", "lock", "ebb", "shore")
FINGERPRINT = "tidegate-simulator"
DONE = b"data: [DONE]\n\n"


def text(key: int, start: int, end: int) -> str:
    """Tokens `start` to `end` of the answer that belongs to `key`: one word each."""
    return "".join(f" {WORDS[(key + index * index + index) % len(WORDS)]}" for index in range(start, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The fixed part of one answer."""

    id: str
    created: int
    model: str
    generation: Generation

    @property
    def _chat(self) -> bool:
        return self.generation.kind == "chat"

    def whole(self, choices: list[tuple[str, str]], completion_tokens: int) -> bytes:
        """The body of an answer that is not streamed; `choices` are text and finish reason."""
        none = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))
        return msgspec.json.encode(
            {
                "id": self.id,
                "object": "chat.completion" if self._chat else "text_completion",
                "created": self.created,
                "model": self.model,
                "choices": [self._choice(index, *choice) for index, choice in enumerate(choices)],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self._usage(completion_tokens)
                | {"prompt_tokens_details": None, "completion_tokens_details": None},
                **(
                    dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
                    if self._chat
                    else {}
                ),
                **none,
            }
        )

    def opening(self, index: int) -> bytes:
        """The first event of a chat choice, which names the role."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        extra: dict[str, Any] = {"prompt_token_ids": None, "prompt_text": None}
        if self.generation.continuous_usage:
            extra = {"usage": self._running_usage(0), **extra}
        return self._event([choice], extra)

    def delta(self, index: int, new_text: str, finish_reason: str | None, completion_tokens: int) -> bytes:
        """An event with new text; the last of a choice has a finish reason."""
        choice: dict[str, Any] = {"index": index}
        choice |= {"delta": {"content": new_text}} if self._chat else {"text": new_text}
        choice |= {"logprobs": None, "finish_reason": finish_reason}
        if finish_reason or not self._chat:
            choice["stop_reason"] = None
        choice |= {"token_ids": None} if self._chat else {"prompt_token_ids": None, "token_ids": None}
        extra: dict[str, Any] = {}
        if finish_reason and not self.generation.include_usage:
            extra["system_fingerprint"] = FINGERPRINT
        if self.generation.continuous_usage:
            extra["usage"] = self._running_usage(completion_tokens)
        return self._event([choice], extra)

    def usage(self, completion_tokens: int) -> bytes:
        """The event that `stream_options.include_usage` asks for."""
        return self._event([], {"usage": self._usage(completion_tokens), "system_fingerprint": FINGERPRINT})

    def _event(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        fields = {
            "id": self.id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return b"data: " + msgspec.json.encode(fields | extra) + b"\n\n"

    def _choice(self, index: int, content: str, finish_reason: str) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None, "token_ids": None}
        if not self._chat:
            hidden = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "routed_experts"))
            return {"index": index, "text": content, **end, **hidden}
        empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message = {"role": "assistant", "content": content, **empty}
        return {"index": index, "message": message, **end, "routed_experts": None}

    def _usage(self, completion_tokens: int) -> dict[str, Any]:
        prompt_tokens = sum(prompt.tokens for prompt in self.generation.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }

    def _running_usage(self, completion_tokens: int) -> dict[str, Any]:
        details = {"completion_tokens_details": None} if self._chat else {}
        return self._usage(completion_tokens) | details


def error_body(error: BadRequest) -> bytes:
    """The body that goes with `error.status`."""
    if error.type is None:
        return msgspec.json.encode({"detail": error.message})
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.status}
    return msgspec.json.encode({"error": fields})


def models_body(model: str, created: int, max_model_tokens: int) -> bytes:
    """The body of `/v1/models`: the one model, with the length of its context."""
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "tidegate",
        "root": model,
        "parent": None,
        "max_model_len": max_model_tokens,
        "permission": [],
    }
    return msgspec.json.encode({"object": "list", "data": [card]})
