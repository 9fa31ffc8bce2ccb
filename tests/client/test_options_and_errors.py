"""Options and errors as a program meets them: in whatever context, in a log line, and gone when caught."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.stacks import Stack, every_stack
from tidegate_client import (
    AdaptiveConcurrency,
    Guard,
    RateLimited,
    RetryPolicy,
    RetryTransport,
    WaitEvent,
    Why,
    call_options,
)
from tidegate_client.options import current_options
from tidegate_client.testing import Board, FakeClock, Reply, ScriptedServer, refuse


@pytest.mark.parametrize("ended_elsewhere", [True, False])
def test_a_block_that_ends_in_another_context_is_no_error(ended_elsewhere: bool) -> None:
    """A framework may begin and end a generator in two threads: it changes nothing there, nor breaks it."""

    def patience() -> Iterator[None]:
        with call_options(deadline_s=5):
            yield

    block, begun = patience(), contextvars.copy_context()
    begun.run(next, block)
    (contextvars.copy_context() if ended_elsewhere else begun).run(lambda: list(block))

    assert begun.run(current_options).changes == ({"deadline_s": 5} if ended_elsewhere else {})
    assert current_options().changes == {}


async def show(event: WaitEvent) -> None:
    """A listener that nobody would await."""


class Show:
    """Another one."""

    async def __call__(self, event: WaitEvent) -> None:
        """Hears nothing."""


@pytest.mark.parametrize("listener", [show, Show(), "show"])
def test_a_listener_that_would_hear_nothing_is_refused(listener: Any) -> None:
    """At once and by name, wherever it is given."""
    for give in (lambda: RetryTransport(on_wait=listener), lambda: Guard("http://engine", on_wait=listener)):
        with pytest.raises(TypeError, match=r"on_wait is .*give a plain function"):
            give()
    with pytest.raises(TypeError, match="on_wait is"), call_options(on_wait=listener):
        pass


def test_why_is_written_as_its_value() -> None:
    """In every version of Python: as a text, in an f-string, in a format."""
    assert [str(Why.QUOTA), f"{Why.QUOTA}", f"{Why.QUOTA:>6}", json.dumps(Why.QUOTA)] == [
        "quota",
        "quota",
        " quota",
        '"quota"',
    ]


@every_stack
@pytest.mark.parametrize(
    ("script", "policy"),
    [
        ((), None),
        ((), RetryPolicy(deadline_s=10)),
        ((), RetryPolicy(concurrency=AdaptiveConcurrency())),
        ((refuse(1),), RetryPolicy(deadline_s=10)),
        ((refuse(300),), None),
    ],
    ids=["answered", "with a deadline", "with a limit", "after a refusal", "refused"],
)
async def test_no_call_waits_for_the_garbage_collector(
    stack: Stack, script: tuple[Reply, ...], policy: RetryPolicy | None
) -> None:
    """What it held is free when it ends, the error once it is caught: a body may be a megabyte."""
    clock = FakeClock()
    inner = stack.library.MockTransport(ScriptedServer(*script, clock=clock))
    transport = stack.wrap(inner, policy=policy, timebase=clock, board=Board())

    async def call() -> weakref.ref[Any]:
        request = stack.library.Request("POST", "http://engine/", json={"model": "m"})
        with contextlib.suppress(RateLimited, stack.library.ConnectError):
            await transport.handle_async_request(request) if stack.is_async else transport.handle_request(
                request
            )
        return weakref.ref(request)

    gc.collect()
    gc.disable()
    try:
        assert (await call())() is None
    finally:
        gc.enable()
