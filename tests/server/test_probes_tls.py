"""A metrics page behind TLS: whom to trust, and how to be trusted."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.expositions import page
from tests.server.expositions.misbehaving import answer, serving
from tidegate.core.reading import Reading
from tidegate.probes import ProbeError
from tidegate.probes.auto import find_probe
from tidegate.probes.options import ProbeOptions
from tidegate.probes.protocol import as_readings, close

PAGE = page("vllm_0.32.0")

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    files = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-out", str(files[0]), "-keyout", str(files[1]), "-days", "2", "-subj", "/CN=probe test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    return files


def server_side(certificate: tuple[Path, Path], *, ask_the_client: bool = False) -> ssl.SSLContext:
    """Return a server's context, one that wants the client's certificate too when asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if ask_the_client:
        context.load_verify_locations(certificate[0])
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def read(url: str, **options: Any) -> list[Reading]:
    """Read the page as the settings would."""
    probe, _ = find_probe(ProbeOptions(urls=(url,), read_models=False, timeout_s=10, **options))
    try:
        return as_readings(await probe.read())
    finally:
        await close(probe)


async def test_an_unknown_authority_is_refused(certificate: tuple[Path, Path]) -> None:
    """A certificate nobody vouches for is a failure that says so."""
    async with serving(answer(PAGE), server_side(certificate)) as server:
        with pytest.raises(ProbeError, match="certificate"):
            await read(f"https://127.0.0.1:{server.port}/metrics")

    assert server.requests == []


async def test_an_own_authority_or_none_at_all(certificate: tuple[Path, Path]) -> None:
    """`ca_file` trusts this one, `verify_tls = false` anybody."""
    async with serving(answer(PAGE), server_side(certificate)) as server:
        for options in ({"ca_file": certificate[0]}, {"verify_tls": False}):
            (reading,) = await read(f"https://127.0.0.1:{server.port}/metrics", **options)
            assert reading.kv_usage == 0.7734375


async def test_a_server_that_wants_a_certificate(certificate: tuple[Path, Path]) -> None:
    """With `client_cert_file` the page is read, also without verifying the server; without it not."""
    mine = {"client_cert_file": certificate[0], "client_key_file": certificate[1]}
    async with serving(answer(PAGE), server_side(certificate, ask_the_client=True)) as server:
        url = f"https://127.0.0.1:{server.port}/metrics"
        for options in ({"ca_file": certificate[0]}, {"verify_tls": False}):
            assert await read(url, **options, **mine)
        with pytest.raises(ProbeError):
            await read(url, ca_file=certificate[0])


async def test_a_redirect_from_http_to_https_is_followed(certificate: tuple[Path, Path]) -> None:
    """The same host, better protected; the certificate is verified there as well. Never the other way."""
    async with serving(answer(PAGE), server_side(certificate)) as safe:
        here = f"location: https://127.0.0.1:{safe.port}/metrics\r\n"
        async with serving(answer(b"", status="308 Moved", headers=here)) as plain:
            assert await read(plain.url, ca_file=certificate[0])
            with pytest.raises(ProbeError, match="certificate"):
                await read(plain.url)

            async def back(head: str, writer: asyncio.StreamWriter) -> None:
                await answer(b"", status="302 Found", headers=f"location: {plain.url}\r\n")(head, writer)

            safe.behaviour = back
            with pytest.raises(ProbeError, match="not the same host"):
                await read(f"https://127.0.0.1:{safe.port}/metrics", ca_file=certificate[0])
