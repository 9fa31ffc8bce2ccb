"""A connection that the server is about to close is not used again.

Servers of this kind close an unused connection after five seconds. A request that sets out on it in that
moment is lost, and may not be sent again: nobody knows whether it was carried out. The clock of the pools is
the test's.
"""

from __future__ import annotations

import socket
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import httpcore
import httpcore2
import httpx
import httpx2
import pytest

from tidegate_client import AsyncClient, AsyncRetryTransport, Client, RetryTransport
from tidegate_client import httpx2 as tidegate_httpx2

IDLE_S = 4.5  # nearly as long as the server waits
POOLS = [
    module for package in (httpcore, httpcore2) for module in (package._sync.http11, package._async.http11)
]


@pytest.fixture
def passed_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is put in here is the time that has passed, for the pools."""
    passed = [0.0]
    for module in POOLS:
        monkeypatch.setattr(
            module, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
        )
    return passed


@pytest.fixture
def accepted() -> Iterator[list[Any]]:
    """A server that answers one request on each connection and then keeps it open; its connections."""
    connections: list[Any] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        connections.append(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        yield connections
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in connections[1:]:
        connection.close()


@pytest.mark.parametrize(
    "client",
    [
        lambda: httpx.Client(transport=RetryTransport()),
        Client,
        lambda: httpx2.Client(transport=tidegate_httpx2.RetryTransport()),
        tidegate_httpx2.Client,
    ],
    ids=["httpx transport", "httpx client", "httpx2 transport", "httpx2 client"],
)
def test_after_a_wait_a_request_sets_out_on_a_new_connection(
    client: Any, passed_s: list[float], accepted: list[Any]
) -> None:
    """The server's own time is not yet up, and may be in the next moment."""
    with client() as made:
        assert made.post(accepted[0], timeout=10).text == "ok"
        passed_s[0] = IDLE_S
        assert made.post(accepted[0], timeout=10).text == "ok"
    assert len(accepted) == 1 + 2


@pytest.mark.parametrize(
    "client",
    [
        lambda: httpx.AsyncClient(transport=AsyncRetryTransport()),
        AsyncClient,
        lambda: httpx2.AsyncClient(transport=tidegate_httpx2.AsyncRetryTransport()),
        tidegate_httpx2.AsyncClient,
    ],
    ids=["httpx transport", "httpx client", "httpx2 transport", "httpx2 client"],
)
async def test_so_does_one_of_an_async_client(
    client: Any, passed_s: list[float], accepted: list[Any]
) -> None:
    """Likewise."""
    async with client() as made:
        assert (await made.post(accepted[0], timeout=10)).text == "ok"
        passed_s[0] = IDLE_S
        assert (await made.post(accepted[0], timeout=10)).text == "ok"
    assert len(accepted) == 1 + 2


def test_limits_that_are_given_hold(passed_s: list[float], accepted: list[Any]) -> None:
    """Who knows the server better says so."""
    limits = httpx.Limits(keepalive_expiry=60.0)
    with Client(limits=limits) as made:
        assert made.post(accepted[0], timeout=10).text == "ok"
        passed_s[0] = IDLE_S
        with pytest.raises(httpx.ReadTimeout):  # this server answers only once on each
            made.post(accepted[0], timeout=0.2)
    assert len(accepted) == 1 + 1
