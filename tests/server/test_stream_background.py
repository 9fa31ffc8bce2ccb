"""Leases of background responses end exactly once, when their end is seen or their bound expires."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.asgi.background import BackgroundLeases
from tidegate.asgi.classify import Dialect, Route
from tidegate.asgi.stream import OutputCounter

ROUTE = Route(Dialect.OPENAI_RESPONSES, True, "/v1/responses")


def response(status: str, name: str = "resp_A", **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "response", "status": status, "usage": None, **more}


def answered(body: Any) -> OutputCounter:
    counter = OutputCounter(ROUTE)
    counter.feed(json.dumps(body).encode())
    return counter


class Leases:
    """The leases under test, and what became of them."""

    def __init__(self, **options: Any) -> None:
        self.leases = BackgroundLeases(**options)
        self.ended: list[tuple[str, Any]] = []

    def hold(self, status: str = "queued", name: str = "resp_A", now: float = 0.0) -> bool:
        return self.leases.hold(
            answered(response(status, name)), lambda usage: self.ended.append((name, usage)), now
        )

    async def poll(
        self, *bodies: bytes, path: str = "/v1/responses/resp_A", method: str = "GET"
    ) -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path}
        watching = self.leases.watch(scope, send)
        await watching({"type": "http.response.start", "status": 200, "headers": []})
        for number, body in enumerate(bodies):
            await watching(
                {"type": "http.response.body", "body": body, "more_body": number < len(bodies) - 1}
            )
        return sent


def data(body: Any) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_work_that_goes_on_keeps_its_lease(status: str) -> None:
    """The answer to the request is not the end."""
    bench = Leases()
    assert bench.hold(status)
    assert (len(bench.leases), bench.ended) == (1, [])


@pytest.mark.parametrize(
    "body", [response("completed"), response("failed"), {"error": {}}, [], {"id": 5, "status": 1}]
)
def test_work_that_is_over_is_not_held(body: Any) -> None:
    """Nor is an answer that is no response at all."""
    bench = Leases()
    assert not bench.leases.hold(answered(body), lambda usage: bench.ended.append(("x", usage)), 0.0)
    assert bench.ended == []


@pytest.mark.parametrize("status", ["completed", "failed", "incomplete", "cancelled"])
async def test_a_poll_that_shows_the_end_ends_the_lease(status: str) -> None:
    """With the usage it reports, once, and the poll's answer passes as it came."""
    bench = Leases()
    bench.hold()
    await bench.poll(data(response("in_progress")))
    assert bench.ended == []
    body = data(response(status, usage={"input_tokens": 3, "output_tokens": 9}))
    sent = await bench.poll(body[:20], body[20:])
    assert b"".join(message.get("body", b"") for message in sent) == body
    assert bench.ended == [("resp_A", (3, 9))]
    await bench.poll(body)
    assert len(bench.ended) == 1


async def test_cancellation_and_stream_show_the_end_too() -> None:
    """`POST .../cancel` answers with the response; a stream of it ends with an event."""
    bench = Leases()
    bench.hold()
    await bench.poll(data(response("cancelled")), path="/v1/responses/resp_A/cancel", method="POST")
    bench.hold(name="resp_B")
    event = {"type": "response.completed", "response": response("completed", "resp_B")}
    await bench.poll(b"data: " + data(event) + b"\n\n", path="/v1/responses/resp_B")
    assert [name for name, _ in bench.ended] == ["resp_A", "resp_B"]


async def test_answers_about_others_end_nothing() -> None:
    """An unknown id costs nothing; a body that names another response is not believed."""
    bench = Leases()

    async def send(message: Any) -> None:
        raise AssertionError

    bench.hold()
    other = {"type": "http", "method": "GET", "path": "/v1/responses/resp_X"}
    assert bench.leases.watch(other, send) is send
    await bench.poll(data(response("completed", "resp_X")))
    await bench.poll(b"junk")
    assert bench.ended == []


def test_bound_expires() -> None:
    """A response nobody asks about again does not hold its lease for ever."""
    bench = Leases(max_s=10.0)
    bench.hold(now=0.0)
    bench.hold(name="resp_B", now=5.0)
    bench.leases.expire(9.9)
    assert bench.ended == []
    bench.leases.expire(10.0)
    assert bench.ended == [("resp_A", None)]
    bench.leases.close()
    assert bench.ended == [("resp_A", None), ("resp_B", None)]
    assert len(bench.leases) == 0


def test_memory_is_bounded_and_no_lease_is_lost() -> None:
    """The oldest gives way, and is ended rather than forgotten; so is one whose id comes again."""
    bench = Leases(max_responses=2)
    for name in ("a", "b", "c", "c"):
        bench.hold(name=name)
    assert len(bench.leases) == 2
    assert [name for name, _ in bench.ended] == ["a", "c"]
