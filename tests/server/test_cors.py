"""Refusals that a browser can read (cases R6 and R7)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from tests.server.bed import Level, bearer
from tests.serving import serving
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.cors import EXPOSED, Cors, CorsOptions, expose
from tidegate.asgi.types import HeaderList

A = "https://a.example"


def lines(cors: CorsOptions, origin: str | None) -> dict[str, str]:
    request = [] if origin is None else [(b"origin", origin.encode())]
    return {name.decode(): value.decode() for name, value in Cors(cors).refusal_headers(request)}


def test_nothing_is_said_unless_configured() -> None:
    """The default opens refusals to nobody."""
    assert lines(CorsOptions(), A) == {}


def test_configured_origin_may_read_the_refusal() -> None:
    """Origin, Vary and every header of ours that a page needs."""
    got = lines(CorsOptions(allow_origins=(A,)), A)
    assert got["access-control-allow-origin"] == A
    assert got["vary"] == "Origin"
    assert {"Retry-After", "RateLimit"} <= set(got["access-control-expose-headers"].split(", "))
    assert "access-control-allow-credentials" not in got


@pytest.mark.parametrize(
    "origin", ["https://b.example", "https://a.example.evil", "HTTPS://A.EXAMPLE", "null", None]
)
def test_other_origins_get_only_vary(origin: str | None) -> None:
    """A cache must not serve one origin's answer to another."""
    assert lines(CorsOptions(allow_origins=(A,)), origin) == {"vary": "Origin"}


def test_wildcard_needs_no_vary() -> None:
    """`*` is the same for all; without an Origin nothing is said."""
    assert lines(CorsOptions(allow_origins=("*",)), A)["access-control-allow-origin"] == "*"
    assert lines(CorsOptions(allow_origins=("*",)), None) == {}


def test_pattern_must_match_whole_and_credentials_are_told() -> None:
    """`fullmatch`, so that a suffix does not get in."""
    options = CorsOptions(allow_origin_regex=r"https://[a-z]+\.example", allow_credentials=True)
    assert lines(options, A)["access-control-allow-credentials"] == "true"
    assert lines(options, A + ".evil") == {"vary": "Origin"}


@pytest.mark.parametrize("origin", ["\r", "https://a.example\r", "https://a b", "https://" + "x" * 600])
def test_an_odd_origin_is_never_echoed(origin: str) -> None:
    """Whatever the pattern allows."""
    assert lines(CorsOptions(allow_origin_regex=".*"), origin) == {"vary": "Origin"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"allow_origins": ("a.example",)},
        {"allow_origins": ("https://a.example/",)},
        {"allow_origin_regex": "("},
        {"allow_origins": ("*",), "allow_credentials": True},
        {"allow_origin": ("*",)},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """At construction, with the way out."""
    with pytest.raises(ValidationError):
        CorsOptions(**wrong)


def exposed(response: HeaderList) -> list[str]:
    values = [value.decode() for name, value in expose(response) if name == b"access-control-expose-headers"]
    return [name.strip() for value in values for name in value.split(",")]


def test_exposed_headers_are_added_to_the_apps_own() -> None:
    """Never replaced, never repeated."""
    got = exposed(
        [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"X-Own, retry-after")]
    )
    assert got[:2] == ["X-Own", "retry-after"]
    assert sorted(name.lower() for name in got) == sorted({name.lower() for name in (*EXPOSED, "X-Own")})


def test_answers_closed_to_pages_stay_as_they_are() -> None:
    """Nothing is exposed where the app allows no origin."""
    response = [(b"content-type", b"text/plain")]
    assert expose(response) == response


def test_expose_twice_is_expose_once() -> None:
    """Two gates in a row add nothing new."""
    response = [(b"access-control-allow-origin", b"*")]
    assert expose(expose(response)) == expose(response)


async def test_beside_starlettes_middleware() -> None:
    """The header list that Starlette's CORS middleware sends is understood."""
    app = Starlette(
        routes=[Route("/", lambda request: PlainTextResponse("x"))],
        middleware=[Middleware(CORSMiddleware, allow_origins=[A], expose_headers=["X-Own"])],
    )
    starts: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            starts.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [(b"origin", A.encode())],
    }
    await app(scope, receive, send)
    assert exposed(starts[0]["headers"]) == ["X-Own", *EXPOSED]


SPENT = [{"name": "spent", "keys": ["spent"], "requests_per_s": 0.001, "request_burst": 1}]


async def test_r6_r7_r8_a_page_reads_the_refusal_in_both_orders_of_middleware() -> None:
    """R6, R7, R8: CORS outside us or not at all; preflights cost nothing and are never refused."""
    page = {"origin": "https://chat.example"}
    preflight = {**page, "access-control-request-method": "POST"}

    async def handler(request: Any) -> JSONResponse:
        return JSONResponse({})

    gate: dict[str, Any] = {
        "settings": Settings.load(metrics=False, tenants=SPENT, cors={"allow_origins": [page["origin"]]}),
        "probe": Level(),
    }
    cors: dict[str, Any] = {"allow_origins": [page["origin"]], "allow_methods": ["POST"]}
    for outermost_is_ours in (True, False):
        app = Starlette(routes=[Route("/v1/completions", handler, methods=["POST"])])
        layers: list[tuple[Any, dict[str, Any]]] = [(CORSMiddleware, cors), (AdmissionMiddleware, gate)]
        for layer, options in layers if outermost_is_ours else reversed(layers):
            app.add_middleware(layer, **options)
        async with serving(app) as url, _client(url) as client:
            for _ in range(3):
                assert (await client.options("/v1/completions", headers=preflight)).status_code == 200
            await client.post("/v1/completions", json={}, headers=bearer("spent", **page))
            refused = await client.post("/v1/completions", json={}, headers=bearer("spent", **page))
            assert refused.status_code == 429
            assert set(refused.headers.get_list("access-control-allow-origin")) == {page["origin"]}
            exposed = refused.headers["access-control-expose-headers"].lower()
            assert "retry-after" in exposed
            assert refused.json()["error"]["retry_after"] >= 1
            again = await client.options("/v1/completions", headers=preflight)
            assert again.status_code == 200


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=30)
