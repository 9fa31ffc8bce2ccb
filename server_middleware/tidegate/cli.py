"""The `tidegate` command: `demo`, `check`, `top`.

Law of this file: it reads arguments and prints; each command's work is in a module of its own, imported
only when it is asked for. The command is there after a bare `pip install tidegate` too, so nothing that an
extra brings is imported before it can be said which.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from importlib.metadata import version

_OF_THE_EXTRA = frozenset(
    {"pydantic", "pydantic_settings", "msgspec", "prometheus_client", "rich", "starlette", "uvicorn"}
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 good, 1 failed, 2 wrong usage or configuration."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        if package not in _OF_THE_EXTRA:
            raise
        print(
            f"tidegate: the command needs the package {package!r}: pip install 'tidegate[cli]'",
            file=sys.stderr,
        )
        return 2


def _run(options: argparse.Namespace) -> int:
    from tidegate.settings_errors import InvalidSettings

    try:
        return int(options.run(options))
    except InvalidSettings as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate", description="Admission control by the real KV level.")
    parser.add_argument("--version", action="version", version=f"tidegate {version('tidegate')}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="flood an engine with and without the gate, and compare")
    demo.add_argument("--requests", type=int, default=100, help="long requests in the flood (default 100)")
    demo.add_argument("--seed", type=int, default=7, help="equal seeds send equal floods")
    demo.add_argument("--keep", action="store_true", help="leave a gated server up afterwards")
    demo.add_argument(
        "--urls",
        nargs=2,
        metavar=("BARE", "GATED"),
        help="flood these two running servers instead of starting any",
    )
    demo.add_argument("--model", default="simulated", help="model name to ask for (with --urls)")
    demo.set_defaults(run=_demo)

    check = commands.add_parser(
        "check", help="read the configuration and the engine once, and say what was found"
    )
    check.set_defaults(run=_check)

    top = commands.add_parser("top", help="watch a running gate in the terminal")
    top.add_argument("url", help="the server, e.g. http://127.0.0.1:8000")
    top.add_argument("--token", help="the admin token, if the console has one")
    top.set_defaults(run=_top)
    return parser


def _demo(options: argparse.Namespace) -> int:
    import httpx
    from rich.console import Console

    from tidegate.demo.command import DemoFailed, demo, running_servers, simulated_server
    from tidegate.demo.load import Flood

    if options.requests < 1:
        print(f"tidegate: --requests is {options.requests}: send at least 1.", file=sys.stderr)
        return 2
    flood = Flood(requests=options.requests, seed=options.seed, model=options.model)
    server = running_servers(*options.urls) if options.urls else simulated_server
    # Ended by `kill` or a service manager as by Ctrl-C: it takes its servers along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(demo(flood, Console(), server, options.keep))
    except DemoFailed as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    except httpx.RequestError as error:
        address = error.request.url
        print(f"tidegate: {address} does not answer ({error}). Is the server up?", file=sys.stderr)
        return 1
    return 0


def _check(options: argparse.Namespace) -> int:
    from tidegate.check import check

    return asyncio.run(check())


def _top(options: argparse.Namespace) -> int:
    from tidegate.top import top

    return top(options.url, options.token)
