"""The four ways to use the client (httpx and httpx2, sync and async) behind one interface, for tests in one
table.

Law: a test that uses `stack` says nothing about which of the four it runs on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest

import tidegate_client
import tidegate_client.httpx2
from tidegate_client import RetryPolicy, WaitEvent
from tidegate_client.testing import Board, FakeClock, Reply, ScriptedServer


class ServedSync:
    """A caller on a thread."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def request(self, method: str, url: str, **options: Any) -> Any:
        return self.client.request(method, url, **options)


class ServedAsync(ServedSync):
    """A caller on an event loop."""

    async def request(self, method: str, url: str, **options: Any) -> Any:
        return await self.client.request(method, url, **options)


@dataclasses.dataclass(frozen=True)
class Stack:
    """One library in one colour."""

    name: str
    library: Any
    transports: Any
    is_async: bool

    def wrap(self, inner: Any, **options: Any) -> Any:
        """Our transport around `inner`."""
        kind = self.transports.AsyncRetryTransport if self.is_async else self.transports.RetryTransport
        return kind(inner, **options)

    def caller(self, inner: Any, clock: FakeClock, board: Board | None = None, **options: Any) -> ServedSync:
        """A client on our transport around `inner`."""
        transport = self.wrap(inner, timebase=clock, board=board or Board(), **options)
        if self.is_async:
            return ServedAsync(self.library.AsyncClient(transport=transport))
        return ServedSync(self.library.Client(transport=transport))


STACKS = [
    Stack("httpx", httpx, tidegate_client, False),
    Stack("httpx-async", httpx, tidegate_client, True),
    Stack("httpx2", httpx2, tidegate_client.httpx2, False),
    Stack("httpx2-async", httpx2, tidegate_client.httpx2, True),
]

every_stack = pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
async_stacks = pytest.mark.parametrize(
    "stack", [each for each in STACKS if each.is_async], ids=lambda stack: stack.name
)
sync_stacks = pytest.mark.parametrize(
    "stack", [each for each in STACKS if not each.is_async], ids=lambda stack: stack.name
)


class Scene:
    """A caller before a scripted server, on a fake clock whose draws are all `uniform`."""

    def __init__(
        self,
        stack: Stack,
        *script: Reply,
        policy: RetryPolicy | None = None,
        then: Reply | None = None,
        uniform: float | None = 0.5,
        on_wait: Callable[[WaitEvent], object] | None = None,
    ) -> None:
        self.clock = FakeClock(uniform=uniform)
        self.server = ScriptedServer(*script, then=then, clock=self.clock)
        self.board = Board()
        self.events: list[WaitEvent] = []
        self.caller = stack.caller(
            stack.library.MockTransport(self.server),
            self.clock,
            self.board,
            policy=policy,
            on_wait=on_wait or self.events.append,
        )

    async def get(self, url: str = "http://engine/v1/models", **options: Any) -> Any:
        return await self.caller.request("GET", url, **options)

    async def post(self, url: str = "http://engine/v1/completions", **options: Any) -> Any:
        return await self.caller.request("POST", url, **{"json": {"model": "m"}, **options})

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive attempts as the server saw them."""
        at = [request.at for request in self.server.received]
        return [later - earlier for earlier, later in itertools.pairwise(at)]


async def until(condition: Callable[[], object], ticks: int = 5000) -> None:
    """Let the loop turn until `condition` holds; fails instead of hanging."""
    for _ in range(ticks):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("what the test waits for did not come")
