"""The start of the app's own answer: nothing of a refusal is on it."""

from __future__ import annotations

from tests.server.bed import bed
from tidegate.asgi.types import Receive, Scope, Send


async def test_r2_r3_answers_keep_their_own_headers_and_get_no_retry_after() -> None:
    """R2, R3: nothing of a refusal on an admitted answer; the app's own limit headers pass once."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"ratelimit", b'"own";r=5'), (b"x-ratelimit-limit", b"7")]
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async with bed(app) as b:
        response = await b.post()
        assert "retry-after" not in response.headers
        assert response.headers.get_list("ratelimit") == ['"own";r=5']
        assert response.headers.get_list("x-ratelimit-limit") == ["7"]
