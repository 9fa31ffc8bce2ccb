"""`tidegate check` on set-ups that are broken: it says what is wrong, where, and what to set."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from tests.server.terminal import console, text
from tests.serving import serving
from tidegate import InvalidSettings, Settings
from tidegate.asgi.types import Receive, Scope, Send
from tidegate.check import check, oddities
from tidegate.testing import EngineOptions, create_engine_app

RUNNING = b'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
LEVEL = b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
PAGES: dict[str, tuple[int, bytes]] = {
    "/login": (200, b"<html><body>Please log in</body></html>"),
    "/protected": (401, b"who are you?"),
    "/missing": (404, b"nothing here"),
    "/broken": (500, b"boom"),
    "/empty": (200, b""),
    "/another": (200, b"# TYPE process_cpu counter\nprocess_cpu_total 3\n"),
    "/without_a_level": (200, RUNNING),
    "/without_a_capacity": (200, RUNNING + LEVEL),
}


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, body = PAGES.get(scope["path"], (404, b""))
    kind = b"text/html" if body.startswith(b"<") else b"text/plain; version=0.0.4"
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async with serving(pages) as url:
        yield url


async def said_by_check(code: int) -> str:
    """What it prints, on one line."""
    out = Console(file=io.StringIO(), width=400, force_terminal=False)
    assert await check(out) == code
    assert isinstance(out.file, io.StringIO)
    return " ".join(out.file.getvalue().split())


@pytest.mark.parametrize(
    ("path", "way_out"),
    [
        ("/login", "answered with an HTML page; check the path"),
        ("/protected", "answered 401; set probe.bearer_token or probe.headers"),
        ("/missing", "answered 404; the path is wrong, or the engine's metrics are switched off"),
        ("/broken", "answered 500"),
        ("/empty", "there are no metrics at all on the page; check the path"),
        ("/another", "no known engine: the page has 1 metrics (process_cpu_total, ...)"),
        ("/without_a_level", "this is vLLM, but none of vllm:kv_cache_usage_perc"),
    ],
)
async def test_a_page_that_tells_no_level(
    path: str, way_out: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1; the page, what it answered, what to set, and what the gate would do meanwhile."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", server + path)
    monkeypatch.setenv("TIDEGATE_PROBE__ON_BLIND", "closed")
    said = await said_by_check(1)
    assert f"No level: {server}{path}: {way_out}" in said
    assert "it would refuse every guarded request (probe.on_blind = 'closed')" in said


async def test_an_engine_that_will_be_in_the_servers_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong there; the running server can be asked by its address."""
    monkeypatch.setenv("TIDEGATE_PROBE__SOURCE", "registry")
    said = await said_by_check(1)
    assert "such as vLLM's with --middleware, the probe may still find them" in said
    assert "TIDEGATE_PROBE__URLS=http://127.0.0.1:8000 tidegate check" in said


async def test_a_port_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address stands in the line; the policy too."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", "http://127.0.0.1:9/metrics")
    said = await said_by_check(1)
    assert "No level: http://127.0.0.1:9/metrics: " in said
    assert "more carefully (probe.on_blind = 'local')" in said
    assert "may still find" not in said, "only where the probe looks into its own process"


async def test_words_in_brackets_are_printed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of TLS and of the system stand in brackets, which the printer must not take for styles."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", server.replace("http", "https") + "/metrics")
    assert "[SSL" in await said_by_check(1)


async def test_a_level_without_a_capacity_is_worth_a_word(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works, and would work better with the figure set."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", server + "/without_a_capacity")
    monkeypatch.setenv("TIDEGATE_PROBE__READ_MODELS", "false")
    said = await said_by_check(0)
    assert "25.0%" in said
    assert "set kv.capacity_tokens" in said


async def test_a_file_that_is_not_there_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line and exit code 2 by way of the command; no traceback."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", "https://127.0.0.1/metrics")
    monkeypatch.setenv("TIDEGATE_PROBE__CA_FILE", "/no/such/file")
    with pytest.raises(InvalidSettings, match=r"probe\.ca_file"):
        await said_by_check(0)


ODD: list[tuple[dict[str, Any], str]] = [
    ({"identity": {"tenant_header": "X-Tenant"}}, "set identity.trusted_proxies"),
    ({"identity": {"end_user_header": "X-User"}}, "set identity.trusted_proxies, or give tenants keys"),
    ({"tenants": [{"name": "gold"}]}, "tenants gold: without keys"),
    ({"identity": {"require_key": True}}, "everybody gets a 401"),
    ({"mode": "shadow"}, "mode is 'shadow': nothing is held back"),
]


@pytest.mark.parametrize(("given", "told"), ODD)
def test_what_is_allowed_and_hardly_meant_is_told(given: dict[str, Any], told: str) -> None:
    """A set-up that does nothing is found before the night."""
    (oddity,) = oddities(Settings.load(**given))
    assert told in oddity


def test_an_ordinary_set_up_is_not_talked_about() -> None:
    """Keys, a header from trusted proxies, a bound for the unproven."""
    settings = Settings.load(
        tenants=[{"name": "gold", "keys": ["k"]}, {"name": "unproven", "requests_per_s": 1}],
        identity={"tenant_header": "X-T", "trusted_proxies": ["10.0.0.1"], "require_key": True},
    )
    assert not list(oddities(settings))


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    async with serving(create_engine_app(EngineOptions(step_s=0.002))) as url:
        yield url


async def test_check_shows_what_the_engine_says(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configuration, the probe's choice and why, and the first reading."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", f"{engine}/metrics")
    out = console()
    assert await check(out) == 0
    said = text(out)
    assert "mode enforce" in said
    assert engine in said
    assert "16,384" in said or "16,368" in said, said


async def test_check_says_that_the_gate_would_be_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, the reason and the policy that would hold."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", "http://127.0.0.1:9/metrics")
    out = console()
    assert await check(out) == 1
    assert "on_blind = 'local'" in " ".join(text(out).split())
