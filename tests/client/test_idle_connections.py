"""A connection that the server is about to close is not used again.

Servers of this kind close an unused connection after five seconds. A request that sets out on it in that
moment is lost, and may not be sent again: nobody knows whether it was carried out. The clock of the pools is
the test's.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


class Server(ThreadingHTTPServer):
    """Answers every request and keeps every connection open; counts the connections."""

    daemon_threads = True  # one waits on each connection until its client closes it
    connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


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
    client: Any, passed_s: list[float], server: Server
) -> None:
    """The server's own time is not yet up, and may be in the next moment."""
    with client() as made:
        assert made.post(server.url).text == "ok"
        passed_s[0] = IDLE_S
        assert made.post(server.url).text == "ok"
    assert server.connections == 2


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
async def test_so_does_one_of_an_async_client(client: Any, passed_s: list[float], server: Server) -> None:
    """Likewise."""
    async with client() as made:
        assert (await made.post(server.url)).text == "ok"
        passed_s[0] = IDLE_S
        assert (await made.post(server.url)).text == "ok"
    assert server.connections == 2


@pytest.mark.parametrize("limits", [None, httpx.Limits(keepalive_expiry=60.0)], ids=["at once", "as told"])
def test_otherwise_a_connection_serves_again(
    limits: httpx.Limits | None, passed_s: list[float], server: Server
) -> None:
    """Without a wait; and who knows the server better says so."""
    given: dict[str, Any] = {} if limits is None else {"limits": limits}
    with Client(**given) as made:
        assert made.post(server.url).text == "ok"
        passed_s[0] = IDLE_S if limits else 0.0
        assert made.post(server.url).text == "ok"
    assert server.connections == 1
