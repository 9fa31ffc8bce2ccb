"""The clients of the herd benchmark, each as its users have it.

    python benchmarks/herd_clients.py NAME URL CALLS

Law: one client a process; it sends all calls at once and prints how many were served and how long that took.
Libraries are imported when asked for, so that one which is not installed leaves the others alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

BODY = {"model": "bench", "messages": [{"role": "user", "content": "hi"}]}
Send = Callable[[], Awaitable[bool]]


def _poster(client: Any) -> Send:
    async def send() -> bool:
        response: httpx.Response = await client.post("/v1/chat/completions", json=BODY)
        return response.status_code == 200

    return send


def _chatter(client: Any) -> Send:
    """The question, as the OpenAI SDK puts it."""
    import openai

    async def send() -> bool:
        try:
            await client.chat.completions.create(**BODY)
        except openai.RateLimitError:
            return False
        return True

    return send


def plain(url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None), **options)


def openai_sdk(url: str, retries: int) -> Send:
    """The OpenAI SDK as it comes, with its own retries."""
    import openai

    return _chatter(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=retries))


def httpx_retries(url: str) -> Send:
    """httpx-retries, told to retry POST and 429."""
    from httpx_retries import Retry, RetryTransport  # type: ignore[import-not-found]

    retry = Retry(total=12, backoff_factor=0.5, allowed_methods=["POST"], status_forcelist=[429])
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
    return _poster(plain(url, transport=RetryTransport(transport=inner, retry=retry)))


def plain_tenacity(url: str) -> Send:
    """tenacity's full jitter around httpx, Retry-After ignored."""
    import tenacity

    post = _poster(plain(url))
    retrying = tenacity.AsyncRetrying(
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=30),
        stop=tenacity.stop_after_attempt(13),
        retry=tenacity.retry_if_result(lambda served: not served),
        retry_error_callback=lambda state: False,
    )
    return lambda: retrying(post)


def retryhttp(url: str) -> Send:
    """retryhttp's decorator around httpx."""
    import retryhttp as library  # type: ignore[import-not-found]

    client = plain(url)

    @library.retry(max_attempt_number=13)  # type: ignore[untyped-decorator]
    async def post() -> None:
        (await client.post("/v1/chat/completions", json=BODY)).raise_for_status()

    async def send() -> bool:
        try:
            await post()
        except (httpx.HTTPStatusError, httpx.TransportError):
            return False
        return True

    return send


def tidegate_httpx(url: str) -> Send:
    """This project's client, as it comes."""
    import tidegate_client

    limits = httpx.Limits(max_connections=None)
    return _poster(tidegate_client.AsyncClient(base_url=url, timeout=60, limits=limits))


def tidegate_httpx2(url: str) -> Send:
    """The same on httpx2."""
    import httpx2

    import tidegate_client.httpx2

    limits = httpx2.Limits(max_connections=None)
    return _poster(tidegate_client.httpx2.AsyncClient(base_url=url, timeout=60, limits=limits))


def tidegate_openai(url: str) -> Send:
    """The OpenAI SDK on this project's client."""
    from tidegate_client.sdks import async_openai_client

    return _chatter(async_openai_client(base_url=f"{url}/v1", api_key="k"))


CLIENTS: dict[str, Callable[[str], Send]] = {
    "openai, default (2 retries)": lambda url: openai_sdk(url, 2),
    "openai, 12 retries": lambda url: openai_sdk(url, 12),
    "httpx-retries, 12": httpx_retries,
    "tenacity, full jitter, 12": plain_tenacity,
    "retryhttp, 12": retryhttp,
    "tidegate_client, httpx": tidegate_httpx,
    "tidegate_client, httpx2": tidegate_httpx2,
    "tidegate_client, openai": tidegate_openai,
}


def run_client(name: str, url: str, calls: int) -> None:
    """Send all calls at once through one client and print how many succeeded and how long it took."""

    async def main() -> None:
        send = CLIENTS[name](url)
        began = time.monotonic()
        served = await asyncio.gather(*(send() for _ in range(calls)))
        print(json.dumps({"served": sum(served), "wall_s": time.monotonic() - began}))

    asyncio.run(main())


if __name__ == "__main__":
    run_client(sys.argv[1], sys.argv[2], int(sys.argv[3]))
