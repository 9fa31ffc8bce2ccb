"""Real servers as processes: the commands, and waiting until they answer."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
SERVERS: dict[str, list[str]] = {
    "uvicorn-h11": ["uvicorn", "{app}", "--http", "h11", "--port", "{port}", "--log-level", "warning"],
    "uvicorn-httptools": [
        *("uvicorn", "{app}", "--http", "httptools", "--port", "{port}", "--log-level", "warning")
    ],
    "hypercorn": ["hypercorn", "{app}", "-w", "0", "-b", "127.0.0.1:{port}", "--log-level", "WARNING"],
    "granian": ["granian", "{app}", "--interface", "asgi", "--port", "{port}", "--log-level", "warning"],
}
PATIENCE_S = 60.0


class Process:
    """One running server and the ways to question its app."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.port = port
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        fresh = httpx.Limits(max_keepalive_connections=0)  # none that the server is about to close
        self._client = httpx.Client(base_url=self.url, timeout=PATIENCE_S, limits=fresh)

    def control(self, **steered: Any) -> dict[str, Any]:
        """Steer the app, and what it says of itself."""
        response = self._client.put("/control", json=steered)
        seen: dict[str, Any] = response.json()
        return seen

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the condition holds.

        Raises:
            AssertionError: it never did.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            seen = self.control()
            if condition(seen):
                return seen
            time.sleep(0.01)
        raise AssertionError(f"{self.name} never came there: {seen}")

    def connect(self) -> socket.socket:
        """A plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def post(self, body: bytes, *lines: str) -> socket.socket:
        """A connection on which a guarded request has been sent."""
        link = self.connect()
        start = ["POST /v1/completions HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines]
        link.sendall("\r\n".join([*start, "", ""]).encode() + body)
        return link

    def close(self) -> None:
        self._client.close()


@contextmanager
def running(name: str, app: str) -> Iterator[Process]:
    """That server with that app, until the block ends."""
    port = free_port()
    command = [part.format(port=port, app=app) for part in SERVERS[name]]
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    server = Process(name, port, process)
    try:
        _wait_until_up(server)
        yield server
    finally:
        server.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def _wait_until_up(server: Process) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if server.control()["level"] is not None:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{server.name} did not start")


def read_all(link: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    while piece := link.recv(65_536):
        data += piece
    return data
