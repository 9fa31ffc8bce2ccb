"""Prometheus over HTTP, against a server that misbehaves in every way there is."""

from __future__ import annotations

import asyncio
import gzip
import logging
import zlib
from typing import Any

import httpx
import pytest

from tests.server.expositions import page
from tests.server.expositions.misbehaving import (
    Behaviour,
    Server,
    answer,
    dripping,
    endless,
    hang,
    raw,
    serving,
)
from tidegate.core.reading import InvalidReading
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.prometheus_http import PrometheusHttpProbe
from tidegate.probes.protocol import ProbeError

PAGE = page("vllm_0.32.0")
MIB = 1024 * 1024


def probe(
    server: Server, *, timeout_s: float = 5.0, max_bytes: int = MIB, **options: Any
) -> PrometheusHttpProbe:
    """Return a probe of the server that asks for nothing but the metrics page."""
    http = BoundedHttp(timeout_s=timeout_s, max_bytes=max_bytes, headers=options.pop("headers", None))
    return PrometheusHttpProbe(server.url, http=http, **{"read_models": False, **options})


async def test_a_page_becomes_a_reading_named_after_its_host() -> None:
    """The instance is host and port, so that several readings can be told apart."""
    async with serving(answer(PAGE)) as server:
        source = probe(server)
        (reading,) = await source.read()
        await source.aclose()

    assert (reading.kv_usage, reading.waiting) == (0.7734375, 7)
    assert reading.instance == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/other/metrics"])
async def test_the_root_of_a_server_means_its_metrics(path: str) -> None:
    """A path that is given is kept."""
    async with serving(answer(PAGE)) as server:
        source = PrometheusHttpProbe(f"http://127.0.0.1:{server.port}{path}", read_models=False)
        await source.read()
        await source.aclose()

    assert server.requests[0].startswith(f"GET {path if len(path) > 1 else '/metrics'} ")


REFUSED: dict[str, tuple[Behaviour, str]] = {
    "404": (answer(b"gone", status="404 Not Found"), "404.*switched off"),
    "500": (answer(PAGE, status="500 Oops"), "answered 500"),
    "401": (answer(b"", status="401 Unauthorized"), r"401.*probe\.bearer_token"),
    "204": (raw(b"HTTP/1.1 204 No Content\r\n\r\n"), "answered 204"),
    "html": (answer(b"<html></html>\n", headers="content-type: text/html\r\n"), "HTML"),
    "html unmarked": (answer(b"<!doctype html>\n<html></html>\n"), "HTML"),
    "json": (answer(b'{"detail": "hello"}\n'), "no metrics"),
    "empty": (answer(b""), "no metrics"),
    "other metrics": (answer(b"process_cpu_seconds_total 1\n"), "no known engine"),
    "closed": (raw(b""), "disconnected|RemoteProtocolError|Server"),
    "no http": (raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "illegal|RemoteProtocolError"),
    "truncated": (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n" + PAGE), "closed|incomplete"),
    "truncated chunks": (
        raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvllm:\r\n"),
        "closed|incomplete",
    ),
    "truncated, no length": (raw(b"HTTP/1.1 200 OK\r\n\r\n" + PAGE[:-5]), "truncated"),
    "50 MB stated": (
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 52428800\r\n\r\n" + b"a 1\n" * MIB),
        "larger than",
    ),
    "endless": (endless, "larger than"),
    "gzip bomb": (
        answer(gzip.compress(b"a 1\n" * 13 * MIB), headers="content-encoding: gzip\r\n"),
        "larger than",
    ),
    "gzip damaged": (answer(b"no gzip at all", headers="content-encoding: gzip\r\n"), "damaged"),
    "gzip truncated": (answer(gzip.compress(PAGE)[:-9], headers="content-encoding: gzip\r\n"), "truncated"),
    "brotli": (answer(PAGE, headers="content-encoding: br\r\n"), "not asked for"),
    "off the host": (
        answer(b"", status="302 Found", headers="location: http://192.0.2.1/metrics\r\n"),
        "not the same host",
    ),
    "another port": (
        answer(b"", status="302 Found", headers="location: http://127.0.0.1:9/metrics\r\n"),
        "another port",
    ),
    "another scheme": (
        answer(b"", status="302 Found", headers="location: ftp://127.0.0.1/metrics\r\n"),
        "not the same host",
    ),
    "to nowhere": (answer(b"", status="302 Found"), "redirected more than"),
    "in circles": (answer(b"", status="307 Round", headers="location: /metrics\r\n"), "redirected more than"),
    "bad port": (
        answer(b"", status="302 Found", headers="location: http://127.0.0.1:port/\r\n"),
        "Invalid port",
    ),
    "bad location": (
        answer(b"", status="302 Found", headers="location: http://[/metrics\r\n"),
        "not the same host",
    ),
    "nan": (answer(b'vllm:kv_cache_usage_perc{engine="0"} NaN\n'), "not 0"),
    "changed names": (answer(b"vllm:kv_fill 0.5\nvllm:num_requests_running 1\n"), r"probe\.names"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_page_is_a_failure_that_names_the_url(name: str) -> None:
    """Each misbehaviour is an error with a reason, and none of them a reading."""
    behaviour, reason = REFUSED[name]
    async with serving(behaviour) as server:
        source = probe(server)
        with pytest.raises(ProbeError, match=reason) as caught:
            await source.read()
        await source.aclose()

    assert server.url in str(caught.value)


@pytest.mark.parametrize("behaviour", [hang, dripping])
async def test_a_late_page_ends_in_time(behaviour: Behaviour) -> None:
    """The time-out bounds the whole fetch: a server that drips bytes is late all the same."""
    async with serving(behaviour) as server:
        source = probe(server, timeout_s=0.2)
        started = asyncio.get_running_loop().time()
        with pytest.raises(ProbeError, match=r"within 0\.2 s"):
            await source.read()
        assert asyncio.get_running_loop().time() - started < 10.0
        await source.aclose()


async def test_what_is_no_url_is_a_failure() -> None:
    """Handed over in code, past the check of the settings."""
    source = PrometheusHttpProbe("http://127.0.0.1:port/metrics")
    with pytest.raises(ProbeError, match="not a URL"):
        await source.read()


async def test_nobody_there_is_a_failure() -> None:
    """A refused connection names the URL."""
    async with serving(hang) as server:
        url = server.url
    source = PrometheusHttpProbe(url)
    with pytest.raises(ProbeError, match=r"connection|Connect"):
        await source.read()
    await source.aclose()


async def test_a_percentage_over_http_is_refused_with_the_way_out() -> None:
    """The URL and the advice stand in one sentence."""
    async with serving(answer(b'vllm:kv_cache_usage_perc{engine="0"} 45\n')) as server:
        source = probe(server)
        with pytest.raises(InvalidReading, match=r"/metrics.*divide by 100"):
            await source.read()
        await source.aclose()


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
async def test_packed_pages_are_read(encoding: str, pack: Any) -> None:
    """The engine is not asked to pack, which costs it time; a page packed all the same is unpacked."""
    async with serving(answer(pack(PAGE), headers=f"content-encoding: {encoding}\r\n")) as server:
        source = probe(server)
        (reading,) = await source.read()
        await source.aclose()

    assert reading.kv_usage == 0.7734375
    assert "accept-encoding: identity" in server.requests[0].lower()


async def test_a_redirect_within_the_host_is_followed() -> None:
    """A mounted /metrics answers 307 to /metrics/ with an empty body."""

    async def behave(head: str, writer: asyncio.StreamWriter) -> None:
        here = head.startswith("GET /metrics/ ")
        await (answer(PAGE) if here else answer(b"", status="307 x", headers="location: /metrics/\r\n"))(
            head, writer
        )

    async with serving(behave) as server:
        source = probe(server, headers={"Authorization": "Bearer s3cret"})
        (reading,) = await source.read()
        await source.aclose()

    assert reading.kv_usage == 0.7734375
    assert all("authorization: bearer s3cret" in head.lower() for head in server.requests)


async def test_credentials_do_not_leave_the_host() -> None:
    """A redirect elsewhere is not followed, so nobody else sees the token."""
    async with serving(answer(PAGE)) as stranger:
        location = f"location: http://localhost:{stranger.port}/metrics\r\n"
        async with serving(answer(b"", status="302 Found", headers=location)) as server:
            source = probe(server, headers={"Authorization": "Bearer s3cret"})
            with pytest.raises(ProbeError, match="not followed"):
                await source.read()
            await source.aclose()

    assert stranger.requests == []


async def test_one_fetch_at_a_time() -> None:
    """A second reading while the first is under way is refused, not queued."""
    async with serving(hang) as server:
        source = probe(server, timeout_s=30)
        first = asyncio.ensure_future(source.read())
        while not server.requests:
            await asyncio.sleep(0.01)
        with pytest.raises(ProbeError, match="under way"):
            await source.read()
        first.cancel()
        await asyncio.wait({first})
        await source.aclose()

    assert server.most_in_flight == 1


async def test_the_connection_is_kept() -> None:
    """Many readings, one connection: the server sees requests, not handshakes."""
    connections: set[Any] = set()

    async def behave(head: str, writer: asyncio.StreamWriter) -> None:
        connections.add(writer.get_extra_info("peername"))
        await answer(PAGE)(head, writer)

    async with serving(behave) as server:
        source = probe(server)
        for _ in range(5):
            await source.read()
        await source.aclose()

    assert len(connections) == 1


async def test_a_failure_is_no_end() -> None:
    """After a failure the next reading is good again."""
    async with serving(endless) as server:
        source = probe(server)
        with pytest.raises(ProbeError):
            await source.read()
        server.behaviour = answer(PAGE)
        (reading,) = await source.read()
        await source.aclose()

    assert reading.kv_usage == 0.7734375


def test_a_probe_outlives_its_event_loop() -> None:
    """Built once, used on two loops one after the other."""
    source: list[PrometheusHttpProbe] = []

    async def round_trip() -> float | None:
        async with serving(answer(PAGE)) as server:
            if not source:
                source.append(probe(server))
            source[0].url = server.url
            (reading,) = await source[0].read()
            await source[0].aclose()
        return reading.kv_usage

    assert asyncio.run(round_trip()) == asyncio.run(round_trip()) == 0.7734375


async def test_a_page_without_a_known_engine_is_read_by_names() -> None:
    """Placing the figures is enough; no preset is needed."""
    async with serving(answer(b"my_level 0.25\nmy_queue 3\n")) as server:
        source = probe(server, names={"kv_usage": "my_level", "waiting": "my_queue"})
        (reading,) = await source.read()
        await source.aclose()

    assert (reading.kv_usage, reading.waiting) == (0.25, 3)


async def test_a_named_engine_is_not_guessed() -> None:
    """With `engine` set, another engine's page is a failure."""
    async with serving(answer(PAGE)) as server:
        source = probe(server, engine="sglang")
        with pytest.raises(ProbeError, match="SGLang"):
            await source.read()
        await source.aclose()


@pytest.mark.parametrize("packed", [False, True])
async def test_a_big_page_does_not_hold_the_loop(packed: bool) -> None:
    """While a page of some megabytes comes in, or out of a small archive, another task keeps running."""
    filler = b"".join(b'filler_total{n="%d"} 1\n' % index for index in range(150_000))
    body = gzip.compress(filler + PAGE) if packed else filler + PAGE
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(answer(body, headers="content-encoding: gzip\r\n" if packed else "")) as server:
        source = probe(server, max_bytes=8 * MIB)
        counting = asyncio.ensure_future(count())
        (reading,) = await source.read()
        counting.cancel()
        await source.aclose()

    assert reading.kv_usage == 0.7734375
    assert turns > len(filler) // (64 * 1024)


async def test_the_environment_s_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is probed is a neighbour; nobody listens at this proxy."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(answer(PAGE)) as server:
        source = probe(server)
        assert len(await source.read()) == 1
        await source.aclose()


async def test_reading_writes_no_line_of_the_http_client(caplog: pytest.LogCaptureFixture) -> None:
    """Apps log at INFO: a line for each page would be one a second; what others fetch is logged as before."""
    caplog.set_level(logging.INFO)
    async with serving(answer(PAGE)) as server:
        source = probe(server)
        await source.read()
        await source.aclose()
        assert not caplog.records
        async with httpx.AsyncClient() as client:
            await client.get(server.url)
    assert [record.name for record in caplog.records] == ["httpx"]


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_a_secret_in_an_address_is_not_told(status: str) -> None:
    """Errors are logged; tokens of a query belong into a header, but are where they are."""
    async with serving(answer(b"{}", status=status)) as server:
        source = PrometheusHttpProbe(server.url + "?token=hidden", read_models=False)
        with pytest.raises(ProbeError) as caught:
            await source.read()
        await source.aclose()
    assert server.url in str(caught.value)
    assert "hidden" not in str(caught.value)
