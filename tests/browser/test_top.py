"""The terminal view, read from a real console over HTTP."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from rich.console import Console

from tests.browser.fake_gate import FakeGate, instance, statistics
from tests.browser.serving import serving
from tidegate import processes
from tidegate.console import ConsoleOptions
from tidegate.top import render, state_url, top


def screen() -> Console:
    """A terminal whose text can be read."""
    return Console(file=io.StringIO(), width=140, force_terminal=False)


def text_of(console: Console) -> str:
    """What was printed."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("http://h:1", "http://h:1/tidegate/state.json"),
        ("h:1/", "http://h:1/tidegate/state.json"),
        ("https://h/gw/tidegate/", "https://h/gw/tidegate/state.json"),
        ("http://h/x/state.json", "http://h/x/state.json"),
    ],
)
def test_state_url(given: str, read: str) -> None:
    """A bare address means the default console; a path is taken as the console's."""
    assert state_url(given) == read


async def watch(
    gate: FakeGate, token: str | None = None, screens: int = 2, path: str = ""
) -> tuple[int, str]:
    """Runs `tidegate top` against a real server."""
    console = screen()
    async with serving(gate.app, lifespan="off") as url:
        code = await asyncio.to_thread(
            top, url + path, token, console=console, sleep=lambda _seconds: None, screens=screens
        )
    return code, text_of(console)


async def test_shows_level_classes_tenants_and_refusals() -> None:
    """Everything an operator asks first is on the screen."""
    gate = FakeGate()
    gate.live_through(60)
    code, text = await watch(gate)
    assert code == 0
    for words in (
        "73.0%",
        "watermark 95%",
        "nightly-eval",
        "queue full",
        "41",
        "fresh",
        "58 slots",
        "118",
        "admitted/s",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("options", "token", "path", "words"),
    [
        (ConsoleOptions(enabled=False), None, "", "no state"),
        (
            ConsoleOptions(admin_token=SecretStr("x" * 20), allow_loopback=False),
            "wrong",
            "",
            "wants the admin token",
        ),
        (ConsoleOptions(), None, "/tidegate/console.js", "no state"),
    ],
)
async def test_says_why_there_is_nothing(
    options: ConsoleOptions, token: str | None, path: str, words: str
) -> None:
    """No console, a wrong token and a wrong address each get a sentence and exit code 1."""
    code, text = await watch(FakeGate(options), token, path=path)
    assert code == 1
    assert words in " ".join(text.split())


def test_server_that_is_not_there() -> None:
    """A refused connection is told as such."""
    console = screen()
    assert top("127.0.0.1:1", console=console) == 1
    assert "does not answer" in " ".join(text_of(console).split())


async def test_server_that_goes_away_is_shown_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the first screen stood, a failure does not end the view."""
    gate = FakeGate()
    real = httpx.Client.get
    calls = 0

    def get(client: httpx.Client, url: str) -> httpx.Response:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise httpx.ConnectError("gone")
        return real(client, url)

    monkeypatch.setattr(httpx.Client, "get", get)
    code, _ = await watch(gate, screens=3)
    assert (code, calls) == (0, 3)


async def test_one_worker_of_several_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are not the whole server's."""
    monkeypatch.setattr(processes, "workers", lambda: 4)
    _, text = await watch(FakeGate())
    assert "one of 4 workers" in text


async def test_a_disputed_capacity_is_told_with_both_figures() -> None:
    """An operator sees which figure the engine states and which is measured."""
    gate = FakeGate()
    row: dict[str, Any] = {
        "capacity_disputed": True,
        "stated_capacity_tokens": 16_384,
        "learnt_capacity_tokens": 9_800,
    }
    gate.now = statistics(instances=(instance(**row),))
    gate.tick()
    code, text = await watch(gate)
    assert code == 0
    assert "the engine states 16,384 tokens, its level says 9,800 tokens" in text


@pytest.mark.parametrize("is_open", [True, False])
def test_a_poor_signal_is_the_first_word(is_open: bool) -> None:
    """While the engine hangs and nobody happens to wait, `open` would reassure the wrong person."""
    gate = FakeGate()
    gate.now = statistics(instances=(instance(state="stalled"),), is_open=is_open)
    gate.tick()
    console = screen()
    console.print(render(gate.console.state()))
    headline = text_of(console).splitlines()[0]
    assert headline.startswith("Tidegate  signal stalled ")
    assert "open" not in headline
    assert "holding" not in headline


@pytest.mark.parametrize(
    "changed",
    [
        {"instances": (), "classes": (), "tenants": (), "refused": {}},
        {"instances": (instance(level=None, capacity_tokens=None, age_s=None, state="blind"),)},
        {"instances": (instance(level=1.0, projected_peak_tokens=40_000),), "is_open": False},
        {"tenants": tuple(replace(statistics().tenants[0], name=f"[red]t{n}[/") for n in range(40))},
    ],
)
def test_every_state_can_be_drawn(changed: dict[str, Any]) -> None:
    """Nothing known, beyond the top, and names that look like markup."""
    gate = FakeGate()
    gate.now = statistics(**changed)
    gate.tick()
    console = screen()
    console.print(render(gate.console.state()))
    text = text_of(console)
    assert "Tidegate" in text
    if len(gate.now.tenants) == 40:
        assert "[red]t1[/" in text
