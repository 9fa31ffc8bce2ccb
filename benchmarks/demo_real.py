"""`scripts/demo --real`: the demo's flood on a real vLLM on the CPU, bare and gated.

Law of this file: the flood and the table are the demo's own; only the servers differ. One engine at a
time, since two would share two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

from benchmarks.engine_bed import (
    EngineFailed,
    build_environment,
    raise_priority,
    running_engine,
    serve_command,
)
from tidegate.demo.command import demo
from tidegate.demo.load import Flood
from tidegate.demo.server import CLASSES, TENANTS

# The bed holds 16,384 tokens and makes some 2,000 tokens a second: longer answers, more patient callers.
FLOOD = Flood(
    requests=100,
    prompt_words=(150, 300),
    output_tokens=(300, 600),
    naive_timeout_s=20.0,
    deadline_s=240.0,
    fitting=25,
    model="tiny",
)


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/demo --real", description=__doc__)
    parser.add_argument("--real", action="store_true", help="(this program)")
    parser.add_argument("--keep", action="store_true", help="leave a gated server up afterwards")
    options = parser.parse_args()
    home = build_environment()
    raise_priority()

    @contextlib.asynccontextmanager
    async def server(is_gated: bool) -> AsyncIterator[str]:
        environment = {"TIDEGATE_TENANTS": json.dumps(TENANTS), "TIDEGATE_CLASSES": json.dumps(CLASSES)}
        with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
            running = running_engine(
                serve_command(home, gated=is_gated),
                Path(logs) / "engine.log",
                environment=environment if is_gated else {},
            )
            engine = await asyncio.to_thread(stack.enter_context, running)
            yield engine.url

    try:
        asyncio.run(demo(FLOOD, Console(), server, options.keep))
    except EngineFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
