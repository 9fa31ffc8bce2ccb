"""Load on one server of the overhead benchmark: wrk for rates, plain sockets for streams and crowds.

Law of this file: it measures one server at a time and judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PATH = "/v1/chat/completions"
# 1 KB of JSON, as a short chat has.
BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "the gate holds the flood until there is room " * 20}],
        "max_tokens": 16,
    }
)
SCRIPT = """
wrk.method = "POST"
wrk.path = "{path}"
wrk.headers["content-type"] = "application/json"
wrk.body = [==[{body}]==]
done = function(summary, latency, requests)
    io.write(string.format("RESULT %f %d %d %d %d\\n", summary.requests / (summary.duration / 1e6),
        latency:percentile(50), latency:percentile(99),
        summary.errors.status, summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
"""


def wrk(port: int, *, connections: int, seconds: int) -> dict[str, float]:
    """Requests per second and latencies (microseconds) of a POST; one thread of wrk."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "post.lua"
        script.write_text(SCRIPT.format(path=PATH, body=BODY))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
        command.append(f"http://127.0.0.1:{port}")
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"RESULT (\S+) (\d+) (\d+) (\d+) (\d+)", output)
    if found is None:
        raise RuntimeError(f"wrk said: {output}")
    rate, p50, p99, refused, broken = (float(group) for group in found.groups())
    return {
        "requests_per_s": rate,
        "requests": rate * seconds,
        "p50_us": p50,
        "p99_us": p99,
        "not_2xx": refused,
        "broken": broken,
    }


def _request(**fields: Any) -> bytes:
    body = json.dumps(json.loads(BODY) | fields).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def streams(port: int, count: int) -> int:
    """Reads `count` streamed answers, one after the other on one connection; bytes received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = 0
    for _ in range(count):
        writer.write(_request(stream=True))
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = await reader.read(1 << 16)
            if not data:
                raise RuntimeError("the server closed the stream")
            received += len(data)
            tail = (tail + data)[-5:]
    writer.close()
    return received


class Crowd:
    """Many connections that have each sent one request and now wait."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def come(self, count: int) -> None:
        """Connects and sends, a hundred at a time."""
        for first in range(0, count, 100):
            await asyncio.gather(*(self._one() for _ in range(first, min(count, first + 100))))

    async def leave(self) -> None:
        """All at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        await asyncio.sleep(0)

    async def _one(self) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(_request(user="hold"))
        await writer.drain()
        self._writers.append(writer)


async def get_json(port: int, path: str) -> dict[str, Any]:
    """A small GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    found: dict[str, Any] = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    return found
