"""Streams and answers to be counted, and counters for them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.stream import OutputCounter

DONE = b"data: [DONE]\n\n"


def route(dialect: Dialect) -> Route:
    return Route(dialect, True, "x")


def sse(*events: object, end: str = "\n\n") -> bytes:
    return b"".join(f"data: {json.dumps(event)}{end}".encode() for event in events)


def counter(dialect: Dialect = Dialect.OPENAI_CHAT, sequences: int = 1) -> OutputCounter:
    return OutputCounter(route(dialect), sequences)


def chat(text: str | None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": None, **more}
    return {"object": "chat.completion.chunk", "choices": [choice]}


OPENAI_USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}


def feed(watch: OutputCounter, data: bytes, cuts: list[int]) -> list[float]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [watch.feed(data[start:end]) for start, end in itertools.pairwise(edges)]
