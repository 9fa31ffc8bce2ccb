"""The FastAPI example as its reader would run it: real uvicorn, real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.serving import serving


@pytest.fixture
async def url() -> AsyncIterator[str]:
    from examples.fastapi.app import app

    async with serving(app) as address:
        yield address


async def test_it_answers_and_counts(url: str) -> None:
    """One request, whole answer."""
    async with httpx.AsyncClient(base_url=url, timeout=250) as client:
        response = await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 5})
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 5
        assert (await client.get("/health")).status_code == 200


async def test_a_flood_never_overfills_the_cache_and_everybody_is_answered(url: str) -> None:
    """Thirty requests on a cache for about eight: all wait their turn, also where a machine is slow."""
    from examples.fastapi.app import CACHE_TOKENS, cache

    highest = 0

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, cache.held_tokens)
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    async with httpx.AsyncClient(base_url=url, timeout=250) as client:
        body = {"prompt": "x" * 1600, "max_tokens": 20}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(30)))
    watching.cancel()
    assert Counter(answer.status_code for answer in answers) == {200: 30}
    assert 0 < highest <= CACHE_TOKENS


async def test_a_wrong_body_is_the_apps_own_422(url: str) -> None:
    """The gate does not stand between an app and its validation."""
    async with httpx.AsyncClient(base_url=url, timeout=250) as client:
        response = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": "many"})
        assert response.status_code == 422
