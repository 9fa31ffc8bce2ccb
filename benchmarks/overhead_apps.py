"""The apps compared by the overhead benchmark, one uvicorn process each.

    OVERHEAD_APP=tidegate python -m uvicorn --factory benchmarks.overhead_apps:create

Law of this file: every variant serves the same three answers (a small JSON one after parsing the request's
JSON, a stream of 1,000 events, one that never comes), so that they differ only in who stands at the door.
Each peer is set up as its own documentation says, in memory, with limits that are never reached.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

import msgspec
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tidegate import AdmissionMiddleware, Reading, Settings

PATH = "/v1/chat/completions"
CHUNKS = 1000
CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 200, "completion_tokens": 2, "total_tokens": 202},
}
MANY = 1_000_000_000


async def _events() -> AsyncIterator[bytes]:
    for _ in range(CHUNKS):
        yield CHUNK
    yield b"data: [DONE]\n\n"


async def answer(request: Request) -> Response:
    """Parses the body, as a bare app must, and answers."""
    body = await request.json()
    if body.get("user") == "hold":
        while (await request.receive())["type"] != "http.disconnect":
            pass
    if body.get("stream"):
        return StreamingResponse(_events(), media_type="text/event-stream")
    return JSONResponse(ANSWER)


def bare() -> Any:
    """Nobody at the door."""
    return Starlette(routes=[Route(PATH, answer, methods=["POST"])])


def bare_fastapi() -> Any:
    """What fastapi-limiter, a dependency of FastAPI's, and ours on the same app are to be compared with."""
    app = FastAPI()
    app.post(PATH)(answer)
    return app


class Floor:
    """The least that whoever looks into a request must do in Python, and nothing of a gate.

    It reads the body, parses its JSON (by the library that ours uses), hands the body on and lets all
    messages of the answer pass through a function of its own.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages, more = [], True
        while more:
            message = await receive()
            messages.append(message)
            more = message.get("more_body", False)
        msgspec.json.decode(b"".join(message.get("body", b"") for message in messages))
        messages.reverse()

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        def pass_on(message: Any) -> Any:
            return send(message)

        await self._app(scope, replay, pass_on)


def floor() -> Any:
    """What any middleware that reads requests has to pay for."""
    app = bare()
    app.add_middleware(Floor)
    return app


def _gated(level: float, app: Any = None, **settings: Any) -> Any:
    made = itertools.count(1)
    app = bare() if app is None else app

    def probe() -> Reading:
        # The counter moves: a reading in which nothing ever changes would be taken for a frozen gauge.
        return Reading(
            kv_usage=level, waiting=0, running=0, capacity_tokens=MANY, generation_tokens=next(made)
        )

    app.add_middleware(AdmissionMiddleware, settings=Settings(**settings), probe=probe)

    async def leases(_: Request) -> Response:
        middleware = app.middleware_stack
        while not isinstance(middleware, AdmissionMiddleware):
            middleware = middleware.app
        runtime = middleware._runtime  # noqa: SLF001 - the console would show the same, once a second
        assert runtime is not None
        statistics = runtime.statistics()
        refused = sum(statistics.refused.values())
        return JSONResponse(
            {
                "running": statistics.running,
                "queued": statistics.queued,
                "decided": statistics.admitted + refused,
            }
        )

    app.router.routes.append(Route("/leases", leases))
    return app


def tidegate() -> Any:
    """Ours, admitting everything."""
    return _gated(0.1)


def tidegate_fastapi() -> Any:
    """Ours around a FastAPI app, as `bare_fastapi` is and as fastapi-limiter needs it."""
    return _gated(0.1, bare_fastapi())


def tidegate_refusing() -> Any:
    """Ours, after a quota of one request was used up."""
    return _gated(0.1, default_tenant={"requests_per_s": 0.001, "request_burst": 1})


def tidegate_full() -> Any:
    """Ours, at a level that lets one request run; all others wait."""
    room = 20_000
    standard = {"name": "standard", "max_queued": room, "max_wait_s": 900.0}
    return _gated(
        0.99,
        queue={"max_requests": room},
        classes=[standard],
        default_tenant={"max_queued": room},
    )


def slowapi() -> Any:
    """slowapi's ASGI middleware with a default limit."""
    module, util = import_module("slowapi"), import_module("slowapi.util")
    app = bare()
    app.state.limiter = module.Limiter(key_func=util.get_remote_address, default_limits=[f"{MANY}/minute"])
    app.add_middleware(import_module("slowapi.middleware").SlowAPIASGIMiddleware)
    return app


def fastapi_limiter() -> Any:
    """fastapi-limiter's dependency with its in-memory bucket."""
    depends, rates = import_module("fastapi_limiter.depends"), import_module("pyrate_limiter")
    limiter = rates.Limiter(rates.Rate(MANY, rates.Duration.MINUTE))
    app = FastAPI()
    app.post(PATH, dependencies=[Depends(depends.RateLimiter(limiter=limiter))])(answer)
    return app


def asgi_ratelimit() -> Any:
    """asgi-ratelimit's middleware with its memory backend."""
    module = import_module("ratelimit")
    simple = import_module("ratelimit.backends.simple")

    async def authenticate(scope: Any) -> tuple[str, str]:
        return scope["client"][0], "default"

    app = bare()
    app.add_middleware(
        module.RateLimitMiddleware,
        authenticate=authenticate,
        backend=simple.MemoryBackend(),
        config={r"^/v1/": [module.Rule(minute=MANY)]},
    )
    return app


VARIANTS: dict[str, Callable[[], Any]] = {
    factory.__name__: factory
    for factory in (
        bare,
        floor,
        tidegate,
        tidegate_fastapi,
        slowapi,
        asgi_ratelimit,
        bare_fastapi,
        fastapi_limiter,
        tidegate_refusing,
        tidegate_full,
    )
}


def create() -> Any:
    """The app named by OVERHEAD_APP."""
    return VARIANTS[os.environ["OVERHEAD_APP"]]()
