"""An OpenAI-compatible server on the simulated engine: pure ASGI, no framework.

Law of this file: HTTP only. It looks like vLLM's server (paths, bodies, errors, SSE, metrics), so that a
gate, a client or a dashboard can be tried without a GPU; a test compares the two. As there, a caller that
disconnects frees its blocks
at once, and nothing is refused for load: that is the gate's work.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from tidegate.asgi.types import Headers, Receive, Scope, Send, first_header
from tidegate.testing.engine import EngineSimulator
from tidegate.testing.engine_driver import EngineDriver, Ticket
from tidegate.testing.engine_http import JSON, lifespan, read_body, send_error, send_whole, unless_gone
from tidegate.testing.engine_metrics import EngineCollector
from tidegate.testing.engine_replies import DONE, Reply, models_body, text
from tidegate.testing.engine_requests import BadRequest, Generation, Kind, Prompt, parse
from tidegate.testing.engine_values import EngineOptions, EngineStats

GENERATION_PATHS: dict[str, Kind] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}


def create_engine_app(
    options: EngineOptions | None = None,
    *,
    model: str = "simulated",
    seed: int = 0,
    answer_tokens: int = 128,
    registry: CollectorRegistry | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    wall_clock: Callable[[], float] = time.time,
) -> EngineApp:
    """An ASGI app that behaves like a vLLM server with one engine.

    Args:
        options: size and speed of the engine.
        model: the name it serves.
        seed: equal seeds give equal answers to equal prompts, whatever the order they come in.
        answer_tokens: mean length of answers that may end by themselves (`ignore_eos` not set).
        registry: where its metrics go, besides its own `/metrics`; None for a registry of its own.
        clock, sleep: the pace of the engine, in seconds; a `FakeClock` and its `sleep` in tests.
        wall_clock: the `created` stamps.
    """
    return EngineApp(
        EngineSimulator(options),
        model,
        seed,
        answer_tokens,
        registry or CollectorRegistry(),
        clock,
        sleep,
        wall_clock,
    )


class EngineApp:
    """The app; `engine` and `stats()` tell what the engine is doing."""

    def __init__(
        self,
        engine: EngineSimulator,
        model: str,
        seed: int,
        answer_tokens: int,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        wall_clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self._model = model
        self._seed = seed
        self._answer_tokens = answer_tokens
        self._registry = registry
        self._wall_clock = wall_clock
        self._driver = EngineDriver(engine, clock, sleep)
        self._answers = 0
        registry.register(EngineCollector(engine.options, model, engine.stats))

    def stats(self) -> EngineStats:
        """The engine's gauges and totals now."""
        return self.engine.stats()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry: http and lifespan; a websocket is turned away."""
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        kind = GENERATION_PATHS.get(path)
        pages: dict[str, Callable[[], tuple[str, bytes]]] = {
            "/health": lambda: ("", b""),
            "/ping": lambda: ("", b""),
            "/version": lambda: (JSON, msgspec.json.encode({"version": "simulator"})),
            "/v1/models": lambda: (JSON, self._models()),
            "/metrics": lambda: ("text/plain; version=1.0.0; charset=utf-8", generate_latest(self._registry)),
        }
        if kind is None and path not in pages:
            await send_error(send, BadRequest("Not Found", status=404, type_=None))
        elif scope["method"] not in _methods(path):
            await send_error(send, BadRequest("Method Not Allowed", status=405, type_=None))
        elif kind:
            await self._generate(kind, scope["headers"], receive, send)
        else:
            await send_whole(send, 200, *pages[path]())

    async def _generate(self, kind: Kind, headers: Headers, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body is None:
            return
        content_type = first_header(headers, b"content-type") or ""
        limit = self.engine.options.max_model_tokens
        try:
            generation = parse(kind, content_type, body, model=self._model, max_model_tokens=limit)
        except BadRequest as error:
            await send_error(send, error)
            return
        keys, ticket = self._submit(generation)
        reply = self._reply(generation, headers)
        answer = self._stream if generation.stream else self._whole
        try:
            await unless_gone(answer(reply, keys, ticket, send), receive)
        finally:
            ticket.close()

    def _submit(self, generation: Generation) -> tuple[list[tuple[int, str]], Ticket]:
        """Starts the sequences; returns a text key and a finish reason for each, and their ticket."""
        keys, sequences = [], []
        block = self.engine.options.block_tokens
        for prompt in generation.prompts:
            for number in range(generation.n):
                key = self._key(prompt, number)
                output, reason = self._length(generation, prompt, key)
                keys.append((key, reason))
                sequences.append((prompt.tokens, output, prompt.block_identities(block)))
        return keys, self._driver.submit(sequences)

    def _key(self, prompt: Prompt, number: int) -> int:
        digest = hashlib.blake2b(prompt.data, digest_size=8, key=f"{self._seed}:{number}".encode()).digest()
        return int.from_bytes(digest, "big")

    def _length(self, generation: Generation, prompt: Prompt, key: int) -> tuple[int, str]:
        limit = self.engine.options.max_model_tokens - prompt.tokens
        if generation.max_tokens is not None:
            limit = min(limit, generation.max_tokens)
        if generation.ignore_eos:
            return limit, "length"
        drawn = int(random.Random(key).expovariate(1 / self._answer_tokens))  # noqa: S311 - not a secret
        length = max(1, generation.min_tokens, drawn)
        return (length, "stop") if length < limit else (limit, "length")

    def _reply(self, generation: Generation, headers: Headers) -> Reply:
        self._answers += 1
        prefix = "chatcmpl" if generation.kind == "chat" else "cmpl"
        name = first_header(headers, b"x-request-id") or f"{self._answers:016x}"
        return Reply(
            id=f"{prefix}-{name}", created=int(self._wall_clock()), model=self._model, generation=generation
        )

    def _models(self) -> bytes:
        return models_body(self._model, int(self._wall_clock()), self.engine.options.max_model_tokens)

    async def _whole(self, reply: Reply, keys: list[tuple[int, str]], ticket: Ticket, send: Send) -> None:
        while not ticket.finished:
            await ticket.wait()
        choices = [
            (text(key, 0, length), reason) for (key, reason), length in zip(keys, ticket.lengths, strict=True)
        ]
        await send_whole(send, 200, JSON, reply.whole(choices, sum(ticket.tokens)))

    async def _stream(self, reply: Reply, keys: list[tuple[int, str]], ticket: Ticket, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in _events(reply, keys, ticket):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": DONE})


async def _events(reply: Reply, keys: list[tuple[int, str]], ticket: Ticket) -> AsyncIterator[bytes]:
    """The stream's events; tokens that came while a slow caller was being served are one event."""
    told = [0] * len(keys)
    opened = reply.generation.kind != "chat"
    while told != ticket.lengths:
        await ticket.wait()
        if not opened:
            opened = True
            for index in range(len(keys)):
                yield reply.opening(index)
        for index, (key, reason) in enumerate(keys):
            start, end = told[index], ticket.tokens[index]
            if end > start:
                told[index] = end
                yield reply.delta(
                    index, text(key, start, end), reason if end == ticket.lengths[index] else None, sum(told)
                )
    if reply.generation.include_usage:
        yield reply.usage(sum(told))


def _methods(path: str) -> tuple[str, ...]:
    """What the real server takes: its metrics are a mounted app that asks for no method."""
    if path in GENERATION_PATHS:
        return ("POST",)
    return ("GET", "POST") if path in ("/ping", "/metrics") else ("GET",)
