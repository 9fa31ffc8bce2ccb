"""`tidegate demo` as a process: whoever ends it leaves nothing of it behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil  # type: ignore[import-untyped]
import pytest

from tests.server.terminal import console, text
from tidegate.cli import main
from tidegate.demo.command import demo, simulated_server
from tidegate.demo.load import Flood

# Whoever runs the tests in the background may have Ctrl-C ignored in all that it starts.
PROGRAM = """
import signal
from tidegate.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
raise SystemExit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM there")
@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT], ids=lambda way: way.name)
def test_its_servers_end_with_it(way: signal.Signals) -> None:
    """`kill` and Ctrl-C alike."""
    command = [sys.executable, "-c", PROGRAM, "demo"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demo:
        process = psutil.Process(demo.pid)
        servers: list[psutil.Process] = []
        end = time.monotonic() + 100
        while not servers and time.monotonic() < end:
            time.sleep(0.05)
            servers = process.children(recursive=True)
        demo.send_signal(way)
        assert demo.wait(timeout=100) == 130
    assert servers
    _, alive = psutil.wait_procs(servers, timeout=100)
    for server in alive:
        server.kill()
    assert not alive


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
