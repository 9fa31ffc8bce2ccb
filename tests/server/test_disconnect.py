"""Seeing the caller leave without stealing a message from the app."""

from __future__ import annotations

import asyncio

from tidegate.asgi.disconnect import DisconnectWatch
from tidegate.asgi.types import Message

BODY: Message = {"type": "http.request", "body": b"late", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


class Server:
    """A `receive` fed by the test."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.cancelled = 0

    def put(self, message: Message) -> None:
        self._messages.put_nowait(message)

    def left(self) -> int:
        return self._messages.qsize()

    async def receive(self) -> Message:
        try:
            return await self._messages.get()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_start_it_is_a_plain_pass_through() -> None:
    """Nothing is read ahead of the app."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    server.put(BODY)
    assert await watch.receive() is BODY
    server.put(GONE)
    assert await watch.receive() is GONE
    assert watch.is_gone


async def test_gone_is_true_when_the_caller_leaves_first() -> None:
    """A queued request whose caller leaves is known at once."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(watch.gone(answer))
    await settle()
    assert not waiting.done()
    server.put(GONE)
    assert await waiting


async def test_gone_is_false_when_the_answer_comes_first_and_nothing_is_lost() -> None:
    """The look-ahead that is still under way belongs to the app afterwards."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(watch.gone(answer))
    await settle()
    answer.set_result(None)
    assert not await waiting
    server.put(GONE)
    assert (await watch.receive())["type"] == "http.disconnect"
    assert server.cancelled == 0


async def test_a_late_body_message_is_kept_for_the_app() -> None:
    """Watching a request whose body was not read to its end loses no byte and keeps waiting."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(watch.gone(answer))
    server.put(BODY)
    await settle()
    assert not waiting.done()
    answer.set_result(None)
    assert not await waiting
    assert await watch.receive() is BODY


async def test_a_leaving_is_seen_behind_the_rest_of_the_body() -> None:
    """Servers tell of it after all that was sent before; nothing of that is lost or out of order."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(watch.gone(answer, ahead_bytes=200_000))
    parts: list[Message] = [
        {"type": "http.request", "body": b"x" * 9_000, "more_body": True} for _ in range(9)
    ]
    for message in (*parts, GONE):
        server.put(message)
    assert await asyncio.wait_for(waiting, 60)
    assert [await watch.receive() for _ in range(10)] == [*parts, GONE]


async def test_no_more_than_its_bound_is_looked_through() -> None:
    """What a caller goes on to send while it waits is left to the server, which slows it down."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(watch.gone(answer, ahead_bytes=200_000))
    for _ in range(100):
        server.put({"type": "http.request", "body": b"x" * 9_000, "more_body": True})
    await asyncio.sleep(0.05)
    assert server.left() > 60
    answer.set_result(None)
    assert not await waiting
    for _ in range(100):
        assert (await watch.receive())["body"]
    assert server.left() == 0


async def test_a_disconnect_that_was_seen_is_told_for_ever_after() -> None:
    """Apps poll `receive` more than once after a disconnect."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    watch.start()
    server.put(GONE)
    for _ in range(3):
        assert (await watch.receive())["type"] == "http.disconnect"


async def test_on_gone_is_called_once_even_if_nobody_receives() -> None:
    """Superseding needs to know, whatever the app does."""
    calls: list[int] = []
    server = Server()
    watch = DisconnectWatch(server.receive, lambda: calls.append(1))
    watch.start()
    server.put(GONE)
    await settle()
    await watch.receive()
    assert calls == [1]


async def test_superseded_work_is_told_at_once_while_it_waits_in_receive() -> None:
    """The app hears a disconnect although its caller's socket says nothing."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    watch.start()
    listening = asyncio.create_task(watch.receive())
    await settle()
    assert not listening.done()
    watch.tell()
    assert (await listening)["type"] == "http.disconnect"
    assert (await watch.receive())["type"] == "http.disconnect"
    assert server.cancelled == 0


async def test_a_cancelled_poll_loses_nothing() -> None:
    """`Request.is_disconnected` polls `receive` and cancels it; the message is still there."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    watch.start()
    poll = asyncio.create_task(watch.receive())
    await settle()
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    assert server.cancelled == 0
    server.put(GONE)
    assert (await watch.receive())["type"] == "http.disconnect"


async def test_close_ends_the_look_ahead() -> None:
    """No task outlives the request."""
    server = Server()
    watch = DisconnectWatch(server.receive)
    watch.start()
    await settle()
    watch.close()
    await settle()
    assert server.cancelled == 1
