"""What goes wrong with quotas elsewhere, each once through the whole middleware."""

from __future__ import annotations

import hashlib

import pytest

from tests.server.bed import App, Level, bearer, bed, until
from tidegate.asgi.classify import _KNOWN


async def test_l1_tokens_are_reserved_before_they_are_known() -> None:
    """L1: five at once through a limit for two: the estimate is charged up front."""
    tenants = [{"name": "t", "keys": ["t"], "tokens_per_s": 1, "token_burst": 250}]
    async with bed(tenants=tenants) as b:
        b.app.go.clear()
        body = {"prompt": [1] * 10, "max_tokens": 100}
        sent = [b.send(body, headers=bearer("t")) for _ in range(5)]
        await until(lambda: sum(task.done() for task in sent) >= 3)
        assert b.app.running <= 2
        b.app.go.set()
        statuses = sorted([(await task).status_code for task in sent])
        assert statuses.count(429) >= 3


async def test_l5_the_prompt_is_charged_too() -> None:
    """L5: a long prompt with an answer of one token spends the quota."""
    tenants = [{"name": "t", "keys": ["t"], "tokens_per_s": 1, "token_burst": 1500}]
    app = App()
    app.chunks = [b'{"usage": {"prompt_tokens": 1000, "completion_tokens": 1}}']
    async with bed(app, Level(capacity_tokens=1_000_000), tenants=tenants) as b:
        body = {"prompt": [1] * 1000, "max_tokens": 1}
        assert (await b.post(body, headers=bearer("t"))).status_code == 200
        refused = await b.post(body, headers=bearer("t"))
        assert refused.json()["error"]["reason"] == "token_rate_limited"


async def test_l9_l13_many_keys_cost_little_and_appear_nowhere() -> None:
    """L9, L13: a thousand distinct keys; none is in an event, a label or a body."""
    async with bed(max_tenants=50, identity={"max_credentials": 50}) as b:
        for number in range(300):
            await b.post(headers=bearer(f"sk-secret-{number}"))
        books = b.runtime.room.gate._books
        assert len(books.tenants) <= 51
        assert "sk-secret" not in repr(b.events)
        assert hashlib.sha256(b"sk-secret-1").hexdigest() not in repr(b.events)


SPENT = [{"name": "spent", "keys": ["spent"], "requests_per_s": 0.001, "request_burst": 1}]


@pytest.mark.parametrize("path", sorted(_KNOWN))
async def test_m9_every_known_inference_route_is_guarded(path: str) -> None:
    """M9: at a spent quota each is refused, the app is not called."""
    async with bed(tenants=SPENT) as b:
        await b.post(headers=bearer("spent"))
        response = await b.post({"prompt": "x"}, path=path, headers=bearer("spent"))
        assert response.status_code == 429
        assert b.app.started == 1
