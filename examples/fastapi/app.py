"""An existing FastAPI app with the gate in front: the one line that matters is `add_middleware`.

Run it:  uvicorn examples.fastapi.app:app --port 8000

The model here is a pretended one that needs 20 ms a token; in your app it is whatever you serve. The
KV level comes from a callable, since this engine is yours: any function that returns a fraction or a
`Reading` will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from tidegate import AdmissionMiddleware, Reading, Settings

CACHE_TOKENS = 4096
SECONDS_PER_TOKEN = 0.02


class Completion(BaseModel):
    """The part of an OpenAI completion request that this app understands."""

    prompt: str
    max_tokens: int = Field(default=64, ge=1, le=1024)
    stream: bool = False


class Cache:
    """How many tokens of KV are held now."""

    def __init__(self) -> None:
        self.held_tokens = 0
        self.running = 0

    def level(self) -> Reading:
        """What the gate reads."""
        usage = min(1.0, self.held_tokens / CACHE_TOKENS)
        return Reading(kv_usage=usage, running=self.running, waiting=0, capacity_tokens=CACHE_TOKENS)


cache = Cache()
app = FastAPI(title="My model")


@app.get("/health")
async def health() -> dict[str, str]:
    """Never limited, never queued."""
    return {"status": "ok"}


@app.post("/v1/completions", response_model=None)
async def complete(request: Completion) -> JSONResponse | StreamingResponse:
    """Answer with as many words as asked for."""
    if request.stream:
        return StreamingResponse(_events(request), media_type="text/event-stream")
    words = [word async for word in _generate(request)]
    prompt_tokens = _tokens(request.prompt)
    return JSONResponse(
        {
            "choices": [{"index": 0, "text": "".join(words), "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": len(words)},
        }
    )


async def _events(request: Completion) -> AsyncIterator[str]:
    async for word in _generate(request):
        yield f'data: {{"choices": [{{"index": 0, "text": "{word}"}}]}}\n\n'
    yield "data: [DONE]\n\n"


async def _generate(request: Completion) -> AsyncIterator[str]:
    held = _tokens(request.prompt)
    cache.held_tokens += held
    cache.running += 1
    try:
        for number in range(request.max_tokens):
            await asyncio.sleep(SECONDS_PER_TOKEN)
            cache.held_tokens += 1
            held += 1
            yield f" word{number}"
    finally:
        cache.held_tokens -= held
        cache.running -= 1


def _tokens(text: str) -> int:
    return max(1, len(text.encode()) // 4)


# The gate. Added before CORS: Starlette puts the last one added outermost, and CORS must see refusals too.
app.add_middleware(
    AdmissionMiddleware,
    settings=Settings.load(tenants=[{"name": "gold", "keys": ["gold-key"], "priority_class": "vip"}]),
    probe=cache.level,
)
app.add_middleware(
    CORSMiddleware,
    allow_origins=["http://localhost:3000"],
    allow_methods=["POST"],
    allow_headers=["authorization", "content-type", "idempotency-key"],
    expose_headers=["Retry-After", "Retry-After-Ms", "RateLimit", "X-RateLimit-Reset"],
)
