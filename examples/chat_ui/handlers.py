"""From the SDK to the page: a chat endpoint that streams, says when it waits, and passes a refusal on.

Law of this file: one question is one call to the engine. A refusal that the SDK does not wait out becomes
a 429 with the time that remains, as long as no byte of ours has left; after that it becomes an error event
with the same body. When the tab closes the call is cancelled, whatever it was doing.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tidegate_client import RateLimited, WaitEvent, call_options

MAX_BODY_BYTES = 262_144
MAX_MESSAGES = 200

Json = dict[str, Any]


class BadQuestion(ValueError):
    """The page sent something that is no conversation; the message names the field."""


def refusal_body(error: RateLimited) -> Json:
    """The JSON that tells a page about a refusal: reason, scope and the seconds that remain now."""
    remaining_s = _remaining_s(error)
    body: Json = {
        "type": "server_busy",
        "code": "RATE_LIMIT_EXCEEDED",
        "message": error.server_message or "The server is busy.",
        "reason": error.reason,
        "scope": error.scope,
    }
    if remaining_s is not None:
        body["retry_after"] = remaining_s
    return {"error": body}


def rate_limited_response(_request: Request, error: Exception) -> Response:
    """Starlette exception handler: `exception_handlers={RateLimited: rate_limited_response}`.

    Answers 429 with `Retry-After` (whole seconds, rounded up) and `retry-after-ms`, counted from now: the
    time that has passed since the engine's refusal is taken off.
    """
    assert isinstance(error, RateLimited)
    headers = {"Cache-Control": "no-store"}
    remaining_s = _remaining_s(error)
    if remaining_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(remaining_s)))
        headers["retry-after-ms"] = str(math.ceil(remaining_s * 1_000))
    return JSONResponse(refusal_body(error), 429, headers)


def _remaining_s(error: RateLimited) -> float | None:
    if error.retry_at is None or error.retry_after is None:
        return None
    left_s = error.retry_at.timestamp() - time.time()
    return round(min(max(left_s, 0.001), error.retry_after), 3)


def _event(name: str, data: Json) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _failure(status: int, message: str, code: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request", "code": code}}, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatApi:
    """`POST` endpoint for `{"messages": [...]}`; answers with the engine's stream of events.

    Args:
        client: an httpx client of `tidegate_client`, with `on_give_up="raise"`.
        model: name asked for.
        max_tokens: bound of one answer.
    """

    client: httpx.AsyncClient
    model: str
    max_tokens: int = 400

    async def answer(self, request: Request) -> Response:
        """Answer one question; the endpoint."""
        try:
            messages = await _read_messages(request)
        except BadQuestion as error:
            return _failure(400, str(error), "bad_question")
        payload = {"model": self.model, "messages": messages, "stream": True, "max_tokens": self.max_tokens}
        call = _Call(self.client, payload)
        first = asyncio.ensure_future(call.first_news())
        gone = asyncio.ensure_future(_until_gone(request))
        try:
            await asyncio.wait([first, gone], return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                return Response(status_code=499)  # nobody is left to read it
        finally:
            gone.cancel()
            if not first.done():
                first.cancel()
                await call.close()
        return await self._reply(request, call)

    async def _reply(self, request: Request, call: _Call) -> Response:
        """As an ordinary answer while that is still possible, else as a stream."""
        if call.is_open and not call.has_waited:
            try:
                upstream = await call.opened
            except RateLimited as error:
                return rate_limited_response(request, error)
            except httpx.HTTPError as error:
                return _failure(502, f"The engine does not answer: {error!r}.", "engine_unreachable")
            if upstream.is_error:
                body = await upstream.aread()
                await call.close()
                return Response(body, upstream.status_code, media_type=upstream.headers.get("content-type"))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(call.stream(), headers=headers, media_type="text/event-stream")


class _Call:
    """One call to the engine, with the waits that the SDK makes on the way."""

    def __init__(self, client: httpx.AsyncClient, payload: Json) -> None:
        self._client = client
        self._payload = payload
        self._news: asyncio.Queue[WaitEvent | None] = asyncio.Queue()
        self._waits: list[WaitEvent] = []
        self.opened: asyncio.Task[httpx.Response] = asyncio.create_task(self._open())
        self.opened.add_done_callback(lambda _task: self._news.put_nowait(None))

    @property
    def is_open(self) -> bool:
        """The engine has answered or failed for good."""
        return self.opened.done()

    @property
    def has_waited(self) -> bool:
        """There is a wait that the page should be told about."""
        return bool(self._waits)

    async def _open(self) -> httpx.Response:
        with call_options(on_wait=self._news.put_nowait):
            request = self._client.build_request("POST", "/v1/chat/completions", json=self._payload)
            return await self._client.send(request, stream=True)

    async def first_news(self) -> None:
        """Returns when there is something to say: a wait, an answer or a failure."""
        wait = await self._news.get()
        if wait is not None:
            self._waits.append(wait)

    async def stream(self) -> AsyncIterator[bytes]:
        """Waits as events, then the engine's own bytes; a failure as an error event."""
        try:
            while not (self.is_open and self._news.empty() and not self._waits):
                wait = self._waits.pop() if self._waits else await self._news.get()
                if wait is not None:
                    yield _event("wait", asdict(wait))
            upstream = await self.opened
            if upstream.is_error:
                await upstream.aread()
                yield _event("error", {"error": {"message": upstream.text, "status": upstream.status_code}})
                return
            async for chunk in upstream.aiter_bytes():
                yield chunk
        except RateLimited as error:
            yield _event("error", refusal_body(error))
        except httpx.HTTPError as error:
            yield _event("error", {"error": {"message": f"The engine's answer broke off: {error!r}."}})
        finally:
            await self.close()

    async def close(self) -> None:
        """End the call: the engine is told at once that nobody listens."""
        self.opened.cancel()
        await asyncio.wait([self.opened])
        if not self.opened.cancelled() and self.opened.exception() is None:
            await self.opened.result().aclose()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_messages(request: Request) -> list[Json]:
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise BadQuestion("Content-Type must be application/json.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BadQuestion(f"The conversation is longer than {MAX_BODY_BYTES} bytes: start a new one.")
    try:
        messages = json.loads(body)["messages"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadQuestion('The body must be a JSON object with "messages".') from error
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise BadQuestion(f"messages must be a list of 1 to {MAX_MESSAGES} messages.")
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: object) -> Json:
    if not isinstance(message, dict):
        raise BadQuestion(f"messages[{index}] must be an object with role and content.")
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise BadQuestion(f"messages[{index}].role is {role!r}: use user or assistant.")
    if not isinstance(content, str) or not content:
        raise BadQuestion(f"messages[{index}].content must be a text that is not empty.")
    return {"role": role, "content": content}
