"""What users write, checked by mypy and pyright and never run."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import anthropic
import httpx
import httpx2
import openai
from typing_extensions import assert_type

import tidegate_client
import tidegate_client.httpx2
from tidegate_client import Guard, RateLimited, RetryPolicy, WaitEvent, WaitFeed, call_options, rate_limited
from tidegate_client.hooks import several
from tidegate_client.hooks.log import log_waits
from tidegate_client.sdks import anthropic_client, async_openai_client, openai_client, retrying
from tidegate_client.testing import FakeClock, ScriptedServer, answer, refuse

policy = RetryPolicy(max_attempts=3, deadline_s=30, retry_statuses={502})


def show(event: WaitEvent) -> None:
    assert_type(event.wait_s, float)
    assert_type(event.origin, str)


feed = WaitFeed()
on_wait = several(show, log_waits(), feed)

httpx.Client(transport=tidegate_client.RetryTransport(policy=policy, on_wait=show))
httpx.AsyncClient(transport=tidegate_client.AsyncRetryTransport(httpx.AsyncHTTPTransport(http2=False)))
httpx2.Client(transport=tidegate_client.httpx2.RetryTransport())
httpx2.AsyncClient(transport=tidegate_client.httpx2.AsyncRetryTransport())
assert_type(tidegate_client.Client(policy=policy, timeout=5), httpx.Client)
assert_type(tidegate_client.httpx2.AsyncClient(on_wait=on_wait), httpx2.AsyncClient)
assert_type(openai_client(api_key="k"), openai.OpenAI)
assert_type(async_openai_client(api_key="k"), openai.AsyncOpenAI)
assert_type(anthropic_client(api_key="k"), anthropic.Anthropic)
assert_type(retrying(httpx.Client()), httpx.Client)
openai.OpenAI(api_key="k", http_client=tidegate_client.httpx2.Client())

guard = Guard("https://api.example")


@guard
def ask(question: str) -> int:
    return len(question)


@guard
async def ask_async(question: str) -> int:
    return len(question)


assert_type(ask("why"), int)


async def use() -> None:
    assert_type(await ask_async("why"), int)
    with call_options(deadline_s=10), guard.turn():
        pass
    async with guard.turn_async():
        async for event in feed:
            assert_type(event, WaitEvent)


try:
    ask("why")
except RateLimited as error:
    assert_type(error.retry_after, float | None)
    assert_type(error.retry_at, dt.datetime | None)
    assert_type(rate_limited(error), RateLimited | None)

clock = FakeClock()
httpx.Client(transport=httpx.MockTransport(ScriptedServer(refuse(1), answer({}), clock=clock)))

if TYPE_CHECKING:
    RetryPolicy(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ask(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wrong = tidegate_client.AsyncRetryTransport()
    httpx.Client(transport=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
