"""The server of the herd benchmark: a token bucket behind a real socket, in a process of its own.

    python benchmarks/herd_server.py PORT RATE_PER_S LATENCY_S

Law: POST is served from the bucket, GET tells when each POST came, DELETE starts afresh; the server counts,
not the clients.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from typing import Any

import httpx

BURST, RATE_PER_S, LATENCY_S = 20, 20.0, 0.05
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "bench",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}


class BucketServer:
    """An ASGI app: POST is served from a token bucket, GET /stats tells when each POST came, DELETE starts
    afresh.
    """

    def __init__(self, rate_per_s: float, latency_s: float) -> None:
        self.rate_per_s, self.latency_s = rate_per_s, latency_s
        self.reset()

    def reset(self) -> None:
        self.tokens, self.refilled = float(BURST), time.monotonic()
        self.arrivals: list[tuple[float, bool]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await self._reply(send, 200, self.arrivals)
        elif scope["method"] == "DELETE":
            self.reset()
            await self._reply(send, 200, {})
        else:
            served = self._take()
            await asyncio.sleep(self.latency_s)
            extra = [] if served else [(b"retry-after", b"1")]
            await self._reply(send, 200 if served else 429, ANSWER if served else {"error": {}}, extra)

    def _take(self) -> bool:
        now = time.monotonic()
        self.tokens = min(float(BURST), self.tokens + (now - self.refilled) * self.rate_per_s)
        self.refilled = now
        served = self.tokens >= 1.0
        self.tokens -= 1.0 if served else 0.0
        self.arrivals.append((now, served))
        return served

    @staticmethod
    async def _reply(send: Any, status: int, body: Any, extra: Any = ()) -> None:
        content = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *extra]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def serve(port: int, rate_per_s: float, latency_s: float) -> None:
    """Run the server until killed."""
    import uvicorn

    uvicorn.run(BucketServer(rate_per_s, latency_s), port=port, log_level="error", access_log=False)


class Server:
    """The server as a process of its own, for the length of a `with` block."""

    def __init__(self, rate_per_s: float, latency_s: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._figures = [f"{self.port}", f"{rate_per_s}", f"{latency_s}"]

    def __enter__(self) -> str:
        self._process = subprocess.Popen([sys.executable, __file__, *self._figures])
        url = f"http://127.0.0.1:{self.port}"
        for _ in range(200):
            try:
                httpx.get(url)
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return url
        raise RuntimeError("the server did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
