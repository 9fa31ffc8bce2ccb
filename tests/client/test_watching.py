"""What whoever watches sees of waits: a server's words as they are, and nobody who waits no more."""

from __future__ import annotations

import asyncio
import io
import time

import httpx
import pytest
from rich.console import Console

from tests.client.stacks import Scene, Stack, every_stack, until
from tidegate_client import AsyncRetryTransport, RateLimited, WaitEvent, WaitFeed
from tidegate_client.hooks import several
from tidegate_client.hooks.console import Countdown
from tidegate_client.testing import Board, FakeClock, ScriptedServer, answer, refuse


def test_a_servers_words_are_no_markup() -> None:
    """A reason that would be markup of the terminal's is shown as it stands, and breaks nothing."""
    out, until_then = Console(file=io.StringIO(), width=120), time.monotonic() + 30
    event = WaitEvent("[/red] [bold]busy", 30, until_then, 0, 2, 10, "http://engine", "tenant", "none", 1)
    with Countdown(out) as countdown:
        countdown(event)
        out.print(countdown.render())

    assert "[/red] [bold]busy" in out.file.getvalue()  # type: ignore[attr-defined]


@every_stack
async def test_whoever_listens_hears_the_end_of_a_wait(stack: Stack) -> None:
    """A call that was sent, or that gave up, waits no more, whatever it was told before."""
    feed, heard = WaitFeed(), list[WaitEvent]()
    countdown = Countdown(Console(file=io.StringIO()))
    scene = Scene(
        stack, refuse(30), refuse(1), answer(), refuse(300), on_wait=several(heard.append, feed, countdown)
    )
    assert (await scene.get()).status_code == 200
    with pytest.raises(RateLimited):
        await scene.get()

    assert heard[0].wait_s == 30.5
    assert feed.waiting(0.0) == []
    assert countdown.render().row_count == 0


async def test_a_cancelled_wait_is_not_shown() -> None:
    """Whoever left is gone from the list at once; a listener that fails at that holds up nobody."""
    feed, clock = WaitFeed(), FakeClock()

    class Broken:
        def __call__(self, event: WaitEvent) -> None:
            feed(event)

        def ended(self, call_id: int) -> None:
            feed.ended(call_id)
            raise RuntimeError

    server = httpx.MockTransport(ScriptedServer(refuse(30)))
    transport = AsyncRetryTransport(server, on_wait=Broken(), timebase=clock, board=Board())
    call = asyncio.create_task(httpx.AsyncClient(transport=transport).get("http://engine/"))
    await until(lambda: feed.waiting(clock.now))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert feed.waiting(clock.now) == []
