"""The whole gate on real servers and sockets: uvicorn (h11 and httptools), hypercorn and granian."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import pytest
import websockets.sync.client

from tests.server.processes import PATIENCE_S, SERVERS, Process, read_all, running

APP = "tests.server.gated_app:app"


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Process]:
    """The gated app on that server."""
    with running(request.param, APP) as process:
        yield process


@pytest.fixture(autouse=True)
def _at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves an open gate with nothing in it."""
    yield
    if "server" in request.fixturenames:
        process: Process = request.getfixturevalue("server")
        process.control(level=0.0, release=True)
        process.until(lambda seen: seen["running"] == seen["queued"] == 0 and seen["level"] == 0.0)


def full(server: Process) -> None:
    server.control(level=0.99)
    server.until(lambda seen: seen["level"] == 0.99)


def ask(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": 5, "stream": prompt != "echo"}).encode()


def test_admitted(server: Process) -> None:
    """The app's answer with our timing on it, and nothing held afterwards."""
    response = httpx.post(server.url + "/v1/completions", content=ask("echo"), timeout=PATIENCE_S)
    assert (response.status_code, response.text) == (200, "done")
    assert response.headers["server-timing"].startswith("tidegate;dur=")
    assert "retry-after" not in response.headers


def test_m1_each_of_100_chunks_arrives_before_the_next_is_made(server: Process) -> None:
    """M1: the app waits for an acknowledgement of each chunk, so one that is held back stops everything."""
    got = []
    with httpx.stream(
        "POST", server.url + "/v1/completions", content=ask("acknowledged"), timeout=PATIENCE_S
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line:
                got.append(line)
                server.control(acknowledged=len(got))
    assert got == [f"data: {number}" for number in range(100)]


def test_who_waits_is_let_in_when_the_level_falls(server: Process) -> None:
    """Waiting, over a real connection."""
    full(server)
    with server.post(ask("echo"), "Connection: close") as link:
        server.until(lambda seen: seen["queued"] == 1)
        server.control(level=0.0)
        assert read_all(link).startswith(b"HTTP/1.1 200")


def test_q4_who_hangs_up_while_queued_is_forgotten(server: Process) -> None:
    """Q4: the queue empties at once and the app is never called for ghosts."""
    full(server)
    before = server.control()["started"]
    links = [server.post(ask("echo")) for _ in range(10)]
    server.until(lambda seen: seen["queued"] == 10)
    for link in links:
        link.close()
    server.until(lambda seen: seen["queued"] == 0)
    server.control(level=0.0)
    server.until(lambda seen: seen["level"] == 0.0)
    assert server.control()["started"] == before


def test_q6_m2_the_app_is_told_and_its_lease_lasts_until_it_returns(server: Process) -> None:
    """M2, Q6: a caller that hangs up stops the work; the lease follows the work and ends once."""
    server.control(release=False)
    told = server.control()["told"]
    link = server.post(ask("hold"))
    server.until(lambda seen: seen["running"] == 1)
    link.close()
    seen = server.until(lambda seen: seen["told"] == told + 1)
    assert seen["running"] == 1, "the app still works"
    server.control(release=True)
    server.until(lambda seen: seen["running"] == 0)


def test_q6_streams_aborted_midway_leave_no_slot_behind(server: Process) -> None:
    """Q6: after the third chunk, ten times; then an ordinary call."""
    for _ in range(10):
        with server.post(ask("slow")) as link:
            data = b""
            while b"data: 2" not in data:
                data += link.recv(65_536)
    server.until(lambda seen: seen["running"] == 0)
    assert httpx.post(server.url + "/v1/completions", content=ask("echo"), timeout=PATIENCE_S).is_success


def test_trailers_end_the_lease(server: Process) -> None:
    """Where a server takes trailers (hypercorn over HTTP/2), the response and the lease end with them."""
    if server.name != "hypercorn":
        pytest.skip("takes no trailers")
    with httpx.Client(http1=False, http2=True, timeout=PATIENCE_S) as client:
        response = client.post(server.url + "/v1/completions", content=ask("trailers"))
    assert (response.status_code, response.text) == (200, "done")


def test_a_file_sent_by_path_ends_the_lease(server: Process) -> None:
    """Where a server sends files by itself (granian), no body message ever passes."""
    if "http.response.pathsend" not in server.control()["extensions"]:
        pytest.skip("sends no files by path")
    response = httpx.post(server.url + "/v1/completions", content=ask("file"), timeout=PATIENCE_S)
    assert response.text == "from a file"
    server.until(lambda seen: seen["running"] == 0)


def test_websocket_of_the_app_passes_untouched(server: Process) -> None:
    """M7: no lease, no queue, even above the watermark."""
    full(server)
    with websockets.sync.client.connect(f"ws://127.0.0.1:{server.port}/chat") as socket:
        socket.send("hello")
        assert socket.recv() == "hello"
        assert server.control()["running"] == 0


@pytest.mark.parametrize("name", SERVERS)
def test_q14_sigterm_sends_the_waiting_away_and_lets_the_streaming_end(name: str) -> None:
    """Q14: queued callers get 503 with Retry-After at once, streams end whole, the process exits."""
    with running(name, APP) as server:
        streaming = server.post(ask("slow"), "Connection: close")
        assert streaming.recv(1) == b"H"
        full(server)
        waiting = [server.post(ask("echo"), "Connection: close") for _ in range(5)]
        server.until(lambda seen: seen["queued"] == 5)
        server.process.terminate()
        started = time.monotonic()
        answers = [read_all(link) for link in waiting]
        assert time.monotonic() - started < PATIENCE_S / 2
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: " in answer.lower()
            assert b'"reason":"draining"' in answer
        assert b"data: [DONE]" in read_all(streaming)
        server.process.wait(PATIENCE_S)
        for link in (*waiting, streaming):
            link.close()
