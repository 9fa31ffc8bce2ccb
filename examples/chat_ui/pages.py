"""The chat page as routes: static files, with the address of the chat API written into the page.

Law of this file: nothing here talks to an engine. The page may load and call only what the content
security policy names: its own origin, and the origin of the API when that is another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

HERE = Path(__file__).parent
DEFAULT_API = "/api/chat"
Message = MutableMapping[str, Any]


class _SafeHeaders:
    """Adds to every answer the headers that keep a page from being framed, sniffed or stale."""

    def __init__(self, app: Any, policy: str) -> None:
        self._app = app
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        ]

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def page_routes(api_url: str = DEFAULT_API) -> list[BaseRoute]:
    """Routes of the page; mount them last, at the root.

    Args:
        api_url: where the page sends its questions; another origin must allow this one by CORS.
    """
    address = urlsplit(api_url)
    origin = f" {address.scheme}://{address.netloc}" if address.netloc else ""
    policy = f"default-src 'self'; connect-src 'self'{origin}; frame-ancestors 'none'; base-uri 'none'"
    page = (HERE / "page" / "index.html").read_text(encoding="utf-8")
    page = page.replace(f'content="{DEFAULT_API}"', f'content="{api_url}"')

    async def index(_request: Request) -> HTMLResponse:
        return HTMLResponse(page)

    static = Mount(
        "/",
        routes=[
            Route("/", index),
            Mount("/tidegate", StaticFiles(directory=HERE / "tidegate-js")),
            Mount("/", StaticFiles(directory=HERE / "page")),
        ],
        middleware=[Middleware(_SafeHeaders, policy=policy), Middleware(GZipMiddleware)],
    )
    return [static]
