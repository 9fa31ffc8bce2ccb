"""`tidegate demo` as a process: whoever ends it leaves nothing of it behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil  # type: ignore[import-untyped]
import pytest

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
