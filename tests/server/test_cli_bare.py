"""The `tidegate` command where its extra is missing, and lines of the demo that are to be pasted."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys

import pytest
from rich.console import Console

from tests.server.bed import until
from tidegate.demo import command
from tidegate.demo.load import Flood

WITHOUT = """
import sys
sys.modules[{package!r}] = None
from tidegate.cli import main
sys.exit(main({arguments!r}))
"""


def run(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a fresh interpreter that has no such package."""
    program = WITHOUT.format(package=package, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("pydantic", ["check"]),
        ("rich", ["check"]),
        ("rich", ["top", "http://127.0.0.1:9"]),
        ("rich", ["demo"]),
    ],
)
def test_a_missing_extra_is_named(package: str, arguments: list[str]) -> None:
    """Nobody who has just installed it gets a traceback."""
    done = run(package, *arguments)
    assert done.returncode == 2
    assert "pip install 'tidegate[cli]'" in done.stderr
    assert f"{package!r}" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_extra() -> None:
    """A bare installation can say what the command is for."""
    done = run("pydantic", "--help")
    assert (done.returncode, "check" in done.stdout) == (0, True)


async def test_the_line_to_paste_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the narrowest terminal too."""
    monkeypatch.setattr(command, "SCENARIOS", ())
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=False)
    shown = asyncio.create_task(command.demo(Flood(), console, command.simulated_server, keep=True))
    await until(lambda: "curl" in out.getvalue())
    shown.cancel()
    await asyncio.gather(shown, return_exceptions=True)
    (line,) = [line for line in out.getvalue().splitlines() if "curl" in line]
    assert line.endswith('"max_tokens": 32}\'')
