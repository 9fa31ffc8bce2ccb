"""The HTTP pieces on real servers and sockets: uvicorn (h11 and httptools), hypercorn and granian."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from tests.ports import free_port
from tests.server.served import EVENTS

ROOT = Path(__file__).parents[2]
APP = "tests.server.served:app"
COMMANDS = {
    "uvicorn-h11": ["uvicorn", APP, "--http", "h11", "--port", "{port}", "--log-level", "warning"],
    "uvicorn-httptools": [
        "uvicorn",
        APP,
        "--http",
        "httptools",
        "--port",
        "{port}",
        "--log-level",
        "warning",
    ],
    "hypercorn": ["hypercorn", APP, "-b", "127.0.0.1:{port}", "--log-level", "WARNING"],
    "granian": ["granian", APP, "--interface", "asgi", "--port", "{port}", "--log-level", "warning"],
}
SPENT = {"authorization": "Bearer spent"}


class Served:
    """One running server."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            timeout=60,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),  # none that the server is about to close
        )

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@pytest.fixture(scope="module", params=COMMANDS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """The gated app on that server, its spent tenant already at its limit."""
    port = free_port()
    command = [part.format(port=port) for part in COMMANDS[request.param]]
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    server = Served(request.param, port)
    try:
        _wait_until_up(server, process)
        assert server.client.post("/v1/completions", content=b"{}", headers=SPENT).status_code == 200
        yield server
    finally:
        server.client.close()
        process.terminate()
        process.wait(60)


def _wait_until_up(server: Served, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if server.client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"{server.name} did not start")


def head(path: str = "/v1/completions", *lines: str, method: str = "POST", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: x", *lines, "", ""]).encode()


class Closed(Exception):
    """The server has closed the connection between two answers."""


def answer(link: socket.socket, before: bytes = b"") -> tuple[int, bytes]:
    """One response: its status, and whatever was received after its body."""
    data = before
    while b"\r\n\r\n" not in data:
        piece = link.recv(65_536)
        if not piece and not data:
            raise Closed
        assert piece, f"cut off after {data!r}"
        data += piece
    lines, _, rest = data.partition(b"\r\n\r\n")
    status = int(lines.split(b" ", 2)[1])
    length = next(
        (
            int(line.split(b":")[1])
            for line in lines.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(rest) < length:
        piece = link.recv(65_536)
        assert piece, "body cut off"
        rest += piece
    return status, rest[length:]


@pytest.mark.parametrize("chunks", [[], [b""], [b"x"], [b"x" * 60_000] * 50, [b"{", b'"prompt":"x"', b"}"]])
@pytest.mark.parametrize("sized", [True, False])
def test_bodies_arrive_exactly(served: Served, chunks: list[bytes], sized: bool) -> None:
    """From nothing to 3 MB, with and without a declared length."""
    whole = b"".join(chunks)
    response = served.client.post("/v1/completions", content=whole if sized else iter(chunks))
    assert response.status_code == 200
    got = response.json()
    assert (got["length"], got["sha256"]) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert "tidegate;dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("size", [1000, 2_000_000])
def test_early_refusal_leaves_the_connection_in_order(served: Served, size: int) -> None:
    """A 429 before the body was read arrives whole; then the connection is usable, or closed."""
    with served.connect() as link:
        link.sendall(head("/v1/completions", "Authorization: Bearer spent", f"Content-Length: {size}"))
        assert answer(link) == (429, b"")
        is_alive = True
        try:
            for _ in range(0, size, 1000):
                link.sendall(b"x" * 1000)
            link.sendall(head("/health", method="GET"))
            assert answer(link) == (200, b"")
        except (OSError, Closed):
            is_alive = False
        assert is_alive or not served.name.startswith("uvicorn")


def test_refusal_of_a_large_upload_is_read_by_a_client(served: Served) -> None:
    """A client that sends all the way sees the 429 and not a reset."""
    response = served.client.post("/v1/completions", content=b"x" * 5_000_000, headers=SPENT)
    assert response.status_code == 429
    assert response.json()["error"]["reason"] == "rate_limited"


def test_expect_continue_is_not_granted_to_the_refused(served: Served) -> None:
    """No 100 before a refusal on headers alone, one before an admitted body; hypercorn always grants it."""
    lines = ("Content-Length: 2", "Expect: 100-continue")
    with served.connect() as link:
        link.sendall(head("/v1/completions", "Authorization: Bearer spent", *lines))
        first = link.recv(12)
        assert first == (b"HTTP/1.1 100" if served.name == "hypercorn" else b"HTTP/1.1 429")
    with served.connect() as link:
        link.sendall(head("/v1/completions", *lines))
        data = b""
        while b"\r\n\r\n" not in data:
            data += link.recv(1)
        assert data.startswith(b"HTTP/1.1 100")
        link.sendall(b"{}")
        assert answer(link)[0] == 200


def test_http_1_0(served: Served) -> None:
    """Answered and closed."""
    with served.connect() as link:
        link.sendall(head("/v1/completions", "Content-Length: 2", version="1.0") + b"{}")
        assert answer(link)[0] == 200
        assert link.recv(10) == b""
    with served.connect() as link:
        lines = ("Authorization: Bearer spent", "Content-Length: 2")
        link.sendall(head("/v1/completions", *lines, version="1.0") + b"{}")
        assert answer(link)[0] == 429


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions%0A",
        "/v1%2Fcompletions",
        "//v1/completions/",
        "/gw/v1/completions",
        "/V1/Completions;x=1",
    ],
)
def test_spellings_on_the_wire(served: Served, path: str) -> None:
    """What each server makes of an odd path is still guarded."""
    with served.connect() as link:
        link.sendall(head(path, "Authorization: Bearer spent", "Content-Length: 0"))
        assert answer(link)[0] == 429


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "HEAD"])
def test_other_methods_pass(served: Served, method: str) -> None:
    """Also for a tenant at its limit."""
    response = served.client.request(method, "/v1/completions", headers=SPENT)
    assert response.status_code == 200


def test_stream_arrives_as_it_is_made(served: Served) -> None:
    """Each event at once: the app makes the next only when this one has been read."""
    arrived = 0
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                arrived += 1
                assert served.client.get("/acknowledge").status_code == 200
    assert arrived == EVENTS


def test_caller_that_leaves_while_sending_is_not_passed_on(served: Served) -> None:
    """Half a body never reaches the app."""
    before = served.client.post("/v1/completions", content=b"{}").json()["calls"]
    with served.connect() as link:
        link.sendall(head("/v1/completions", "Content-Length: 100") + b"half")
    time.sleep(0.3)
    assert served.client.post("/v1/completions", content=b"{}").json()["calls"] == before + 1


def test_websocket_denial(served: Served) -> None:
    """The 429 with its headers where the server can send it, else a refused handshake."""
    with (
        pytest.raises(InvalidStatus) as caught,
        websockets.sync.client.connect(f"ws://127.0.0.1:{served.port}/ws"),
    ):
        pass
    response = caught.value.response
    if response.status_code == 429:
        assert response.headers["retry-after"] == "3"
    else:
        assert response.status_code == 403
        assert served.name not in ("uvicorn-h11", "uvicorn-httptools", "hypercorn")
