"""The factories keep what httpx does by itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import ssl
import threading
import time
from typing import Any

import httpx
import httpx2
import pytest

import tidegate_client
import tidegate_client.httpx2
from tests.client.real_server import ScriptApp, busy
from tidegate_client import RetryPolicy
from tidegate_client.sdks import retrying
from tidegate_client.testing import Board

FACTORIES = [
    pytest.param(httpx, tidegate_client.Client, tidegate_client.RetryTransport, id="httpx"),
    pytest.param(httpx, tidegate_client.AsyncClient, tidegate_client.AsyncRetryTransport, id="httpx-async"),
    pytest.param(httpx2, tidegate_client.httpx2.Client, tidegate_client.httpx2.RetryTransport, id="httpx2"),
    pytest.param(
        httpx2,
        tidegate_client.httpx2.AsyncClient,
        tidegate_client.httpx2.AsyncRetryTransport,
        id="httpx2-async",
    ),
]
for_each = pytest.mark.parametrize(("library", "factory", "transport"), FACTORIES)


@for_each
def test_proxies_of_the_environment_stay(
    library: Any, factory: Any, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY and NO_PROXY choose the same transports as httpx's own client, each wrapped once."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "internal")
    client = factory()

    def chosen(url: str) -> Any:
        return client._transport_for_url(library.URL(url))

    assert isinstance(chosen("http://example.com"), transport)
    assert isinstance(chosen("http://internal/"), transport)
    proxied, direct = chosen("http://example.com")._inner, chosen("http://internal/")._inner
    assert "Proxy" in type(proxied._pool).__name__
    assert "Proxy" not in type(direct._pool).__name__


@for_each
def test_tls_settings_and_mounts_stay(library: Any, factory: Any, transport: Any) -> None:
    """A given SSL context and mounted transports are inside the wrappers; time-outs are the client's."""
    context = ssl.create_default_context()
    mounted = library.MockTransport(lambda request: library.Response(200))
    client = factory(verify=context, mounts={"all://mock": mounted}, timeout=7)

    assert client._transport._inner._pool._ssl_context is context
    assert client._transport_for_url(library.URL("http://mock/"))._inner is mounted
    assert client.timeout == library.Timeout(7)


def test_a_call_through_a_real_proxy_waits_and_goes_on(
    engine: ScriptApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through an HTTP proxy from the environment, a refusal is waited for like any other."""
    seen: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with (
                caller,
                socket.create_connection(("127.0.0.1", int(engine.url.rpartition(":")[2]))) as server,
            ):
                asked = caller.recv(65536)
                seen.append(asked.partition(b"\r\n")[0])
                server.sendall(asked.replace(b"GET http://engine.test/", b"GET /", 1))
                while answer := server.recv(65536):
                    caller.sendall(answer)
                    if answer.endswith((b"0\r\n\r\n", b"}}")):
                        break

    threading.Thread(target=relay, daemon=True).start()
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
    engine.script += [busy(50)]
    with tidegate_client.Client(policy=RetryPolicy(jitter_base_s=0.01)) as client:
        answer = client.get("http://engine.test/", headers={"connection": "close"})
    listener.close()

    assert answer.status_code == 200
    assert seen == [b"GET http://engine.test/ HTTP/1.1"] * 2


@for_each
async def test_entering_and_closing_reach_the_wrapped_transport(
    library: Any, factory: Any, transport: Any
) -> None:
    """A client's `with` block enters and leaves what is inside the wrapper."""
    told: list[str] = []

    class Inner(library.BaseTransport, library.AsyncBaseTransport):  # type: ignore[misc]
        def __enter__(self) -> Any:
            told.append("enter")
            return self

        async def __aenter__(self) -> Any:
            told.append("enter")
            return self

        def __exit__(self, *args: object) -> None:
            told.append("exit")

        async def __aexit__(self, *args: object) -> None:
            told.append("exit")

        def close(self) -> None:
            told.append("close")

        async def aclose(self) -> None:
            told.append("close")

    is_async = "Async" in transport.__name__
    kind = library.AsyncClient if is_async else library.Client
    if is_async:
        async with kind(transport=transport(Inner())):
            pass
        await kind(transport=transport(Inner())).aclose()
    else:
        with kind(transport=transport(Inner())):
            pass
        kind(transport=transport(Inner())).close()

    assert told == ["enter", "exit", "close"]


@for_each
def test_a_client_fitted_again_retries_once(library: Any, factory: Any, transport: Any) -> None:
    """Whoever is given a client that waits already adds no second layer, and changes only what is said."""
    policy, heard = RetryPolicy(max_attempts=3), list[Any]()
    client = factory(policy=policy)
    for _ in range(3):
        assert retrying(client) is client
    retrying(client, on_wait=heard.append)
    fitted = client._transport

    assert type(fitted) is transport
    assert type(fitted._inner).__name__ in ("HTTPTransport", "AsyncHTTPTransport")
    assert (fitted._setup.policy, fitted._setup.on_wait) == (policy, heard.append)
    assert retrying(client, policy=RetryPolicy())._transport._setup.policy == RetryPolicy()


@for_each
def test_a_policy_of_another_kind_is_refused_at_once(library: Any, factory: Any, transport: Any) -> None:
    """Not at the first call."""
    with pytest.raises(TypeError, match="give a RetryPolicy"):
        factory(policy={"max_attempts": 3})


@pytest.mark.parametrize("by_name", [False, True], ids=["block", "close"])
async def test_a_client_that_is_closed_sends_nothing_more(engine: ScriptApp, by_name: bool) -> None:
    """A call that waits ends with its client, as httpx ends one; nobody would close what it opens."""
    engine.script += [busy(60_000)]
    own = {"authorization": f"closed {by_name}"}  # nothing that another test was told holds for it
    client = tidegate_client.AsyncClient(policy=RetryPolicy(wait_budget_s=100), headers=own)
    async with client:
        call = asyncio.create_task(client.get(engine.url))
        while not client._transport._driver._waiting:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        if by_name:
            await client.aclose()
    with pytest.raises(RuntimeError, match="client has been closed"):
        await asyncio.wait_for(call, 60)

    assert len(engine.received) == 1


def test_a_thread_that_waits_hears_of_it_too(engine: ScriptApp) -> None:
    """And a transport that another client opens again works as before."""
    engine.script += [busy(60_000)]
    transport = tidegate_client.RetryTransport(policy=RetryPolicy(wait_budget_s=100), board=Board())
    with httpx.Client(transport=transport) as client, concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(client.get, engine.url)
        while not transport._driver._waiting:
            time.sleep(0.01)
        client.close()
        with pytest.raises(RuntimeError, match="client has been closed"):
            call.result(10)
    with httpx.Client(transport=transport) as client:
        assert client.get(engine.url).status_code == 200
