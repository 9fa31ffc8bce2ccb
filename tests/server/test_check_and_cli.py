"""The `tidegate` command: check, demo, and what it says when something is wrong."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from tests.serving import serving
from tidegate.check import check
from tidegate.cli import main
from tidegate.demo.command import demo, simulated_server
from tidegate.demo.load import Flood
from tidegate.testing import EngineOptions, create_engine_app


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    async with serving(create_engine_app(EngineOptions(step_s=0.002))) as url:
        yield url


def console() -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=False)


def text(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


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


def test_a_wrong_setting_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for an operator's typo."""
    monkeypatch.setenv("TIDEGATE_MODE", "enforced")
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("tidegate: mode is 'enforced'")


def test_the_demo_needs_at_least_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is said."""
    assert main(["demo", "--requests", "0"]) == 2
    assert "--requests" in capsys.readouterr().err


async def test_the_demo_floods_and_prints_its_table() -> None:
    """Small, but whole: real servers as subprocesses, all three rows, everything accounted for."""
    out = console()
    flood = Flood(requests=6, arrive_within_s=0.1, output_tokens=(5, 10))
    await demo(flood, out, simulated_server, keep=False)
    said = text(out)
    assert "Before and after" in said
    for title in ("no gate", "gate", "gate + SDK"):
        assert f"│ {title}" in said
