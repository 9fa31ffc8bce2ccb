"""One bounded GET.

Law of this file: whatever the other side does, a fetch ends in time, holds little memory, stays on its
host and never runs twice at once. Credentials follow no redirect to another host.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar

import httpx

from tidegate.probes.protocol import ProbeError, shown

MAX_REDIRECTS = 3
CHUNK_BYTES = 64 * 1024
_is_ours: ContextVar[bool] = ContextVar("tidegate-fetch", default=False)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class BoundedHttp:
    """Fetches pages of one host, one at a time.

    `timeout_s` bounds a fetch as a whole, redirects and body included; `max_bytes` bounds the body, as
    sent and as unpacked. The environment's proxies are not used: what is probed is a neighbour.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 2.0,
        max_bytes: int = 4 * 1024 * 1024,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._headers = {
            # Packing a page costs the engine's server more than sending it to a neighbour.
            "Accept-Encoding": "identity",
            "User-Agent": "tidegate-probe",
            **(headers or {}),
        }
        self._tls = _usual_authorities() if tls is True else tls
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight = False

    async def get(self, url: str, accept: str, feed: Callable[[bytes], None]) -> None:
        """Fetch `url` and hand the unpacked body to `feed`, chunk by chunk.

        Raises:
            ProbeError: no answer, an answer other than 200, too late, too large, or truncated; or the
                previous fetch is still under way.
        """
        if self._in_flight:
            raise ProbeError(f"{shown(url)}: the previous fetch is still under way.")
        self._in_flight = True
        _keep_out_of_the_log()
        ours = _is_ours.set(True)
        try:
            await asyncio.wait_for(self._get(url, accept, feed), self._timeout_s)
        except (asyncio.TimeoutError, httpx.TimeoutException) as error:
            raise ProbeError(f"{shown(url)}: no complete answer within {self._timeout_s:g} s.") from error
        except httpx.HTTPError as error:
            raise ProbeError(f"{shown(url)}: {str(error).rstrip('.') or type(error).__name__}.") from error
        except httpx.InvalidURL as error:
            raise ProbeError(f"{shown(url)}: not a URL ({error}).") from error
        except ProbeError as error:
            raise ProbeError(f"{shown(url)}: {error}") from error
        finally:
            self._in_flight = False
            _is_ours.reset(ours)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _get(self, url: str, accept: str, feed: Callable[[bytes], None]) -> None:
        target = httpx.URL(url)
        for _ in range(MAX_REDIRECTS + 1):
            async with self._on_this_loop().stream("GET", target, headers={"Accept": accept}) as response:
                if response.status_code not in _REDIRECTS:
                    await self._body(response, feed)
                    return
                target = _next_hop(target, response)
        raise ProbeError(f"redirected more than {MAX_REDIRECTS} times.")

    async def _body(self, response: httpx.Response, feed: Callable[[bytes], None]) -> None:
        if response.status_code != 200:
            raise ProbeError(f"answered {response.status_code}{_hint(response.status_code)}.")
        if "html" in response.headers.get("content-type", "").lower():
            raise ProbeError("answered with an HTML page; check the path.")
        async for chunk in _unpacked(response, self._max_bytes):
            feed(chunk)
            await asyncio.sleep(0)  # buffered chunks come without a wait: let the loop breathe

    def _on_this_loop(self) -> httpx.AsyncClient:
        # A client's connections belong to the loop that opened them.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                verify=self._tls,
                timeout=self._timeout_s,
                trust_env=False,
                follow_redirects=False,
                limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            )
            self._loop = loop
        return self._client


@functools.cache
def _keep_out_of_the_log() -> None:
    """httpx writes a line for every request at INFO, query and all: one a second, for ever, would be ours."""
    logging.getLogger("httpx").addFilter(lambda _: not _is_ours.get())


@functools.cache
def _usual_authorities() -> ssl.SSLContext:
    # Loading the certificates takes tens of milliseconds: once, and not during the first reading.
    return httpx.create_ssl_context()


async def _unpacked(response: httpx.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body in bounded chunks; a small archive of a huge page ends at `max_bytes` too."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "", "gzip", "x-gzip", "deflate"}:
        raise ProbeError(f"answered in {encoding!r}, which was not asked for.")
    inflate = None if encoding in {"identity", ""} else zlib.decompressobj(wbits=47)  # zlib or gzip header
    sent = unpacked = 0
    async for raw in response.aiter_raw(CHUNK_BYTES):
        sent += len(raw)
        pending = raw
        while pending:
            if inflate is None:
                chunk, pending = pending, b""
            else:
                chunk = _inflate(inflate, pending)
                pending = inflate.unconsumed_tail
            unpacked += len(chunk)
            if max(sent, unpacked) > max_bytes:
                raise ProbeError(
                    f"the body is larger than {max_bytes} bytes; raise probe.max_bytes if it should be."
                )
            yield chunk
    if inflate is not None and not inflate.eof:
        raise ProbeError("the packed body was truncated.")


def _inflate(inflate: zlib._Decompress, pending: bytes) -> bytes:
    try:
        return inflate.decompress(pending, CHUNK_BYTES)
    except zlib.error as error:
        raise ProbeError(f"the packed body is damaged ({error}).") from error


def _next_hop(source: httpx.URL, response: httpx.Response) -> httpx.URL:
    target = source.join(response.headers.get("location", ""))
    upgraded = source.scheme == "http" and target.scheme == "https"
    if target.host != source.host or (target.scheme != source.scheme and not upgraded):
        raise ProbeError(
            f"redirected to {target.scheme}://{target.host}, which is not the same host; not followed."
        )
    if target.port != source.port and not upgraded:
        raise ProbeError(f"redirected to another port ({target.port}) of the host; not followed.")
    return target


def _hint(status: int) -> str:
    if status in {401, 403}:
        return "; set probe.bearer_token or probe.headers"
    if status == 404:
        return "; the path is wrong, or the engine's metrics are switched off"
    return ""
