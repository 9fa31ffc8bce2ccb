"""Two hundred callers before a server that serves twenty a second: what each client makes of `Retry-After:
1`.

Every client meets the same real server (uvicorn, a process of its own) on loopback, one after the other, each
in a
fresh process: a token bucket of 20 that refills at 20 per second, 50 ms per answer. The server counts. Then:
a thousand clients that share nothing, all told the same time; and what the client costs a call that succeeds.

    python benchmarks/herd.py                        # the table, and benchmarks/results/herd.json
    pip install -r benchmarks/herd-requirements.txt  # the other clients; those not installed are left out
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

CALLS = 200
BURST, RATE_PER_S, LATENCY_S = 20, 20.0, 0.05
IDEAL_S = (CALLS - BURST) / RATE_PER_S
RESULTS = pathlib.Path(__file__).parent / "results" / "herd.json"
BODY = {"model": "bench", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "bench",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}
Send = Callable[[], Awaitable[bool]]


# --- the server
# -----------------------------------------------------------------------------------------------------


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


# --- the clients
# ----------------------------------------------------------------------------------------------------


def _poster(client: httpx.AsyncClient) -> Send:
    async def send() -> bool:
        return (await client.post("/v1/chat/completions", json=BODY)).status_code == 200

    return send


def _plain(url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None), **options)


def openai_sdk(url: str, retries: int) -> Send:
    """The OpenAI SDK as it comes, with its own retries."""
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=retries)

    async def send() -> bool:
        try:
            await client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        except openai.RateLimitError:
            return False
        return True

    return send


def httpx_retries(url: str) -> Send:
    """httpx-retries, told to retry POST and 429."""
    from httpx_retries import Retry, RetryTransport  # type: ignore[import-not-found]

    retry = Retry(total=12, backoff_factor=0.5, allowed_methods=["POST"], status_forcelist=[429])
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
    return _poster(_plain(url, transport=RetryTransport(transport=inner, retry=retry)))


def plain_tenacity(url: str) -> Send:
    """tenacity's full jitter around httpx, Retry-After ignored."""
    import tenacity

    post = _poster(_plain(url))
    retrying = tenacity.AsyncRetrying(
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=30),
        stop=tenacity.stop_after_attempt(13),
        retry=tenacity.retry_if_result(lambda served: not served),
        retry_error_callback=lambda state: False,
    )
    return lambda: retrying(post)


def retryhttp(url: str) -> Send:
    """retryhttp's decorator around httpx."""
    import retryhttp as library  # type: ignore[import-not-found]

    client = _plain(url)

    @library.retry(max_attempt_number=13)  # type: ignore[untyped-decorator]
    async def post() -> None:
        (await client.post("/v1/chat/completions", json=BODY)).raise_for_status()

    async def send() -> bool:
        try:
            await post()
        except (httpx.HTTPStatusError, httpx.TransportError):
            return False
        return True

    return send


def tidegate_httpx(url: str) -> Send:
    """This project's client, as it comes."""
    import tidegate_client

    limits = httpx.Limits(max_connections=None)
    return _poster(tidegate_client.AsyncClient(base_url=url, timeout=60, limits=limits))


def tidegate_openai(url: str) -> Send:
    """The OpenAI SDK on this project's client."""
    import openai

    from tidegate_client.sdks import async_openai_client

    client = async_openai_client(base_url=f"{url}/v1", api_key="k")

    async def send() -> bool:
        try:
            await client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        except openai.RateLimitError:
            return False
        return True

    return send


CLIENTS: dict[str, Callable[[str], Send]] = {
    "openai, default (2 retries)": lambda url: openai_sdk(url, 2),
    "openai, 12 retries": lambda url: openai_sdk(url, 12),
    "httpx-retries, 12": httpx_retries,
    "tenacity, full jitter, 12": plain_tenacity,
    "retryhttp, 12": retryhttp,
    "tidegate_client, httpx": tidegate_httpx,
    "tidegate_client, openai": tidegate_openai,
}


def run_client(name: str, url: str) -> None:
    """Send all calls at once through one client and print how many succeeded and how long it took."""

    async def main() -> None:
        send = CLIENTS[name](url)
        began = time.monotonic()
        served = await asyncio.gather(*(send() for _ in range(CALLS)))
        print(json.dumps({"served": sum(served), "wall_s": time.monotonic() - began}))

    asyncio.run(main())


# --- the measurements
# -----------------------------------------------------------------------------------------------


def busiest(instants: list[float], span_s: float = 0.1) -> int:
    """The most instants within any span."""
    instants = sorted(instants)
    return max((bisect.bisect_right(instants, at + span_s) - n for n, at in enumerate(instants)), default=0)


def measure(name: str, url: str) -> dict[str, Any] | None:
    """One client's row; None when it is not installed."""
    httpx.request("DELETE", url)
    done = subprocess.run(
        [sys.executable, __file__, "--client", name, "--url", url],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"{name}: left out ({done.stderr.strip().splitlines()[-1]})", file=sys.stderr)
        return None
    told = json.loads(done.stdout)
    arrivals = httpx.get(url, timeout=30).json()
    later = arrivals[CALLS:]
    served_first = sum(served for _, served in arrivals[:CALLS])
    served_later = max(1, told["served"] - served_first)
    return {
        "client": name,
        "calls": len(arrivals),
        "served": told["served"],
        "calls_per_success_after_first_wave": round(len(later) / served_later, 3),
        "peak_retries_per_100ms": busiest([at for at, _ in later]),
        "wall_s": round(told["wall_s"], 2),
        "wall_over_ideal": round(told["wall_s"] / IDEAL_S, 3),
    }


def independent_clients(clients: int = 1000, retry_after_s: int = 30) -> dict[str, Any]:
    """Clients that share nothing, all told the same time: when do they come back?"""
    from tidegate_client import RetryTransport
    from tidegate_client.testing import Board, FakeClock, ScriptedServer, refuse

    waits = []
    for seed in range(clients):
        clock = FakeClock(start=0.0, seed=seed)
        server = ScriptedServer(refuse(retry_after_s), clock=clock)
        with httpx.Client(
            transport=RetryTransport(httpx.MockTransport(server), timebase=clock, board=Board())
        ) as client:
            client.post("http://engine/")
        waits.append(server.received[1].at)
    return {
        "clients": clients,
        "retry_after_s": retry_after_s,
        "early": sum(wait < retry_after_s for wait in waits),
        "share_in_busiest_100ms": busiest(waits) / clients,
        "latest_s": round(max(waits), 2),
    }


def overhead(url: str, calls: int) -> dict[str, Any]:
    """What a successful call costs beside plain httpx: medians, the two taking turns call by call."""

    async def main() -> dict[str, Any]:
        import tidegate_client

        limits = httpx.Limits(max_connections=None)
        plain, ours = _plain(url), tidegate_client.AsyncClient(base_url=url, timeout=60, limits=limits)
        times: dict[str, list[float]] = {"plain": [], "ours": []}
        for _ in range(calls):
            for name, client in (("plain", plain), ("ours", ours)):
                began = time.perf_counter()
                await client.post("/v1/chat/completions", json=BODY)
                times[name].append(time.perf_counter() - began)
        plain_s, ours_s = (statistics.median(times[name]) for name in ("plain", "ours"))
        return {
            "calls_each": calls,
            "plain_us": round(plain_s * 1e6, 1),
            "ours_us": round(ours_s * 1e6, 1),
            "overhead_share": round(ours_s / plain_s - 1, 4),
        }

    return asyncio.run(main())


# --- the run
# --------------------------------------------------------------------------------------------------------


class Server:
    """The server as a process of its own, for the length of a `with` block."""

    def __init__(self, rate_per_s: float, latency_s: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._figures = [f"{self.port}", f"{rate_per_s}", f"{latency_s}"]

    def __enter__(self) -> str:
        self._process = subprocess.Popen([sys.executable, __file__, "--serve", *self._figures])
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


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows of equal keys as a table."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--only", help="only the clients whose name contains this")
    parser.add_argument("--overhead-calls", type=int, default=4000, help="calls per client")
    arguments = parser.parse_args()
    if arguments.serve:
        port, rate_per_s, latency_s = arguments.serve
        serve(int(port), float(rate_per_s), float(latency_s))
    elif arguments.client:
        run_client(arguments.client, arguments.url)
    else:
        report(arguments.only or "", arguments.overhead_calls)


def report(only: str, overhead_calls: int) -> None:
    """The whole run."""
    with Server(RATE_PER_S, LATENCY_S) as url:
        measured = [measure(name, url) for name in CLIENTS if only in name]
    rows = [row for row in measured if row is not None]
    show(rows)
    apart = independent_clients()
    show([apart])
    with Server(1e9, 0.0) as url:
        cost = overhead(url, overhead_calls)
    show([cost])
    if not only:
        RESULTS.parent.mkdir(exist_ok=True)
        result: dict[str, Any] = {
            "ideal_wall_s": IDEAL_S,
            "calls": CALLS,
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
        }
        result |= {"together": rows, "apart": apart, "overhead": cost}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
