"""The gate wherever an app may put it: Mount, root path, sub-apps, beside BaseHTTPMiddleware of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from tests.server.bed import Level, until
from tests.serving import serving
from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.telemetry.events import EventKind

SPENT = {"authorization": "Bearer spent"}
SETTINGS: dict[str, Any] = {
    "metrics": False,
    "probe": {"interval_s": 0.1, "stale_after_s": 10},
    "tenants": [{"name": "spent", "keys": ["spent"], "requests_per_s": 0.001, "request_burst": 1}],
}


class Marker(BaseHTTPMiddleware):
    """Somebody else's middleware."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-marker"] = "1"
        return response


class Place:
    """Handlers that say what they saw."""

    def __init__(self) -> None:
        self.level = Level()
        self.events: list[EventKind] = []
        self.readings = 0
        self.running = 0
        self.told = 0
        self.go = asyncio.Event()

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        if body.get("stream"):
            return StreamingResponse(self._events(), media_type="text/event-stream")
        if body.get("hold"):
            return await self._hold(request)
        return JSONResponse({"path": request.url.path, "prompt": body["prompt"]})

    async def _events(self) -> AsyncIterator[str]:
        yield "data: first\n\n"
        await self.go.wait()
        yield "data: last\n\n"

    async def _hold(self, request: Request) -> Response:
        self.running += 1
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        self.told += 1
        return PlainTextResponse("for nobody")

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/health", lambda _: PlainTextResponse("ok")),
        ]

    def gated(self, app: Any) -> AdmissionMiddleware:
        return AdmissionMiddleware(app, **self.gate())

    def gate(self) -> dict[str, Any]:
        """The arguments of the middleware."""
        return {
            "settings": Settings.load(**SETTINGS),
            "probe": self.read,
            "hooks": [lambda event: self.events.append(event.kind)],
        }

    async def read(self) -> Reading:
        self.readings += 1
        return await self.level.read()


def plain(place: Place) -> Any:
    return place.gated(Starlette(routes=place.routes()))


def added(place: Place) -> Any:
    app = Starlette(routes=place.routes())
    app.add_middleware(AdmissionMiddleware, **place.gate())
    return app


def fastapi(place: Place) -> Any:
    app = FastAPI(routes=[*place.routes()])
    app.add_middleware(AdmissionMiddleware, **place.gate())
    return app


def mounted(place: Place) -> Any:
    """The gate inside the mounted part: its scope path carries the mount's prefix."""
    return Starlette(routes=[Mount("/inner", plain(place))])


def around_a_mount(place: Place) -> Any:
    return place.gated(Starlette(routes=[Mount("/inner", Starlette(routes=place.routes()))]))


def outside_base_middleware(place: Place) -> Any:
    app = Starlette(routes=place.routes())
    app.add_middleware(Marker)
    app.add_middleware(AdmissionMiddleware, **place.gate())
    return app


def inside_base_middleware(place: Place) -> Any:
    app = added(place)
    app.add_middleware(Marker)
    return app


PLACES = {
    "plain": (plain, ""),
    "add_middleware": (added, ""),
    "fastapi": (fastapi, ""),
    "mounted": (mounted, "/inner"),
    "around a mount": (around_a_mount, "/inner"),
    "outside BaseHTTPMiddleware": (outside_base_middleware, ""),
    "inside BaseHTTPMiddleware": (inside_base_middleware, ""),
}


@asynccontextmanager
async def standing(name: str, **options: Any) -> AsyncIterator[tuple[Place, httpx.AsyncClient]]:
    """That arrangement on a real uvicorn, and a client of its mount point."""
    place = Place()
    make, prefix = PLACES[name]
    async with (
        serving(make(place), **options) as url,
        httpx.AsyncClient(base_url=url + options.get("root_path", "") + prefix, timeout=60) as client,
    ):
        yield place, client


@pytest.mark.parametrize("name", PLACES)
async def test_m5_admitted_refused_and_exempt_wherever_it_stands(name: str) -> None:
    """M5, M4: the guarded set and the exempt set both hold."""
    async with standing(name) as (_, client):
        body = {"prompt": "hello"}
        assert (await client.post("/v1/completions", json=body, headers=SPENT)).json()["prompt"] == "hello"
        refused = await client.post("/v1/completions", json=body, headers=SPENT)
        assert refused.status_code == 429
        assert refused.json()["error"]["reason"] == "rate_limited"
        assert (await client.get("/health", headers=SPENT)).text == "ok"
        assert (await client.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.parametrize("name", ["plain", "mounted"])
async def test_m5_under_a_root_path(name: str) -> None:
    """M5: `--root-path /gw` changes what the scope says and not what is guarded."""
    async with standing(name, root_path="/gw") as (_, client):
        body = {"prompt": "hello"}
        client.base_url = str(client.base_url).replace("/gw", "")
        await client.post("/v1/completions", json=body, headers=SPENT)
        assert (await client.post("/v1/completions", json=body, headers=SPENT)).status_code == 429


@pytest.mark.parametrize("name", PLACES)
async def test_m1_streams_pass_unbuffered_wherever_it_stands(name: str) -> None:
    """M1: the first event arrives while the second does not exist yet."""
    async with (
        standing(name) as (place, client),
        client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == "data: first"
        place.go.set()
        assert "data: last" in [line async for line in lines]


@pytest.mark.parametrize("name", [name for name in PLACES if "BaseHTTPMiddleware" not in name])
async def test_m2_handlers_see_the_caller_leave_wherever_it_stands(name: str) -> None:
    """M2: `request.is_disconnected` works through the gate. (A BaseHTTPMiddleware hides it by itself.)"""
    async with standing(name) as (place, client):
        sent = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x", "hold": True}))
        await until(lambda: place.running == 1)
        sent.cancel()
        await until(lambda: place.told == 1, 60)


@pytest.mark.parametrize("name", ["outside BaseHTTPMiddleware", "inside BaseHTTPMiddleware", "fastapi"])
async def test_q4_who_leaves_the_queue_is_forgotten_wherever_it_stands(name: str) -> None:
    """Q4: seen through other middlewares too; the handler never runs."""
    async with standing(name) as (place, client):
        place.level.kv_usage = 0.97
        before = place.readings
        await until(lambda: place.readings >= before + 2)  # the second is asked for when the first is in
        sent = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x", "hold": True}))
        await until(lambda: EventKind.QUEUED in place.events)
        sent.cancel()
        await until(lambda: EventKind.LEFT in place.events)
        place.level.kv_usage = 0.0
        assert (await client.post("/v1/completions", json={"prompt": "hello"})).status_code == 200
        assert place.running == 0
