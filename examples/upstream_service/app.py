"""A service that asks a language model for summaries, and passes its patience on instead of its impatience.

Law: one client for the whole process; a caller's own deadline bounds what is asked of the model; a model that
is busy beyond it becomes an honest 503 with the time to come back, one that does not answer a 502; never a
hung request.

    MODEL_URL=http://127.0.0.1:8000 uvicorn examples.upstream_service.app:create_app --factory --port 8080
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidegate_client import AsyncClient, RateLimited, RetryPolicy, WaitFeed, call_options
from tidegate_client.hooks import several
from tidegate_client.hooks.log import log_waits

DEFAULT_PATIENCE_S = 30.0
MOST_PATIENCE_S = 300.0
MOST_CHARS = 20_000


def create_app(model_url: str = "", policy: RetryPolicy | None = None) -> Starlette:
    """The service; `model_url` is the OpenAI-compatible server, `MODEL_URL` in the environment by default."""
    base_url = model_url or os.environ.get("MODEL_URL", "http://127.0.0.1:8000")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.waits = WaitFeed()
        on_wait = several(app.state.waits, log_waits())
        async with AsyncClient(base_url=base_url, policy=policy, on_wait=on_wait, timeout=60) as client:
            app.state.client = client
            yield

    routes = [Route("/summaries", summarise, methods=["POST"]), Route("/status", status)]
    return Starlette(routes=routes, lifespan=lifespan)


async def summarise(request: Request) -> JSONResponse:
    """POST {"text": ...}: {"summary": ...}; 503 with Retry-After when the model is busy for longer than the
    caller waits, 502 when it fails or its server does not answer.
    """
    text = await _text(request)
    if isinstance(text, JSONResponse):
        return text
    try:
        with call_options(deadline_s=patience_s(request.headers.get("prefer", ""))):
            return await _ask(request, text)
    except RateLimited as busy:
        seconds = math.ceil(busy.retry_after or 1)
        body = {"error": "busy", "reason": busy.reason, "retry_after": seconds}
        return JSONResponse(body, 503, headers={"retry-after": str(seconds)})
    except httpx.TransportError:
        return JSONResponse({"error": "the model's server does not answer"}, 502)


async def status(request: Request) -> JSONResponse:
    """Who waits for the model now, and for how long: what a page shows as a countdown."""
    now = time.monotonic()
    waiting = request.app.state.waits.waiting(now)
    return JSONResponse(
        [{"reason": event.reason, "seconds": round(event.until - now, 1)} for event in waiting]
    )


def patience_s(prefer: str) -> float:
    """How long the caller waits, in seconds: its `Prefer: wait=N` (RFC 7240) within bounds, or the
    default.
    """
    match = re.search(r"\bwait=([0-9]{1,6})\b", prefer)
    return min(max(float(match[1]), 1.0), MOST_PATIENCE_S) if match else DEFAULT_PATIENCE_S


async def _text(request: Request) -> str | JSONResponse:
    try:
        body = await request.json()
    except ValueError:
        body = None
    text = body.get("text") if isinstance(body, dict) else None
    if not isinstance(text, str) or not 0 < len(text) <= MOST_CHARS:
        return JSONResponse({"error": f"send JSON with a text of 1 to {MOST_CHARS} characters"}, 400)
    return text


async def _ask(request: Request, text: str) -> JSONResponse:
    client = request.app.state.client
    question = {"role": "user", "content": f"Summarise in one sentence:\n{text}"}
    answer = await client.post(
        "/v1/chat/completions",
        json={"model": os.environ.get("MODEL", "default"), "messages": [question], "max_tokens": 100},
        headers=_passed_on(request),
    )
    if answer.status_code != 200:
        return JSONResponse({"error": "the model failed", "status": answer.status_code}, 502)
    reply: dict[str, Any] = answer.json()
    return JSONResponse({"summary": reply["choices"][0]["message"]["content"]})


def _passed_on(request: Request) -> dict[str, str]:
    """A caller's own idempotency key covers the whole chain."""
    key = request.headers.get("idempotency-key")
    return {} if key is None else {"idempotency-key": key}
