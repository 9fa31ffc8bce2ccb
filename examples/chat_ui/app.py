"""The backend of the chat page: static files, the chat endpoint on the SDK, and the demo's flood.

Law of this file: it puts the parts together and holds no logic of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from examples.chat_ui.flood import Flood
from examples.chat_ui.handlers import ChatApi, rate_limited_response
from examples.chat_ui.pages import page_routes
from tidegate_client import AsyncClient, RateLimited, RetryPolicy

POLICY = RetryPolicy(max_attempts=3, wait_budget_s=4.0, on_give_up="raise")
"""Short waits are the backend's affair, and shown; a longer one is the person's to decide about."""
READ_TIMEOUT_S = 60.0


def create_app(
    engine_url: str,
    *,
    model: str,
    key: str = "",
    crowd_keys: Sequence[str] = (),
    console_url: str | None = None,
    policy: RetryPolicy = POLICY,
) -> Starlette:
    """The backend towards one gated engine.

    Args:
        engine_url: base URL of an OpenAI-compatible server with the gate in front.
        model: name to ask for.
        key: sent as Bearer token, if there is one.
        crowd_keys: of the flood's callers, drawn at random; none: they use `key`.
        console_url: the gate's operator's page, linked from the chat page.
        policy: how long the backend itself waits; `on_give_up` must be "raise".
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=5.0)
    client = AsyncClient(policy=policy, base_url=engine_url, headers=headers, timeout=timeout)
    crowd = httpx.AsyncClient(base_url=engine_url, limits=httpx.Limits(max_connections=None))
    flood = Flood(crowd, model, crowd_keys or (key,))

    async def demo(_request: Request) -> Response:
        return JSONResponse({"console": console_url})

    async def flooding(request: Request) -> Response:
        if request.method == "POST":
            if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
                return JSONResponse({"error": {"message": "Only this page may start a flood."}}, 403)
            flood.start()
        return JSONResponse(flood.state())

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await flood.stop()
        await crowd.aclose()
        await client.aclose()

    routes: list[BaseRoute] = [
        Route("/api/chat", ChatApi(client=client, model=model).answer, methods=["POST"]),
        Route("/api/demo", demo),
        Route("/api/flood", flooding, methods=["GET", "POST"]),
        *page_routes(),
    ]
    return Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={RateLimited: rate_limited_response}
    )
