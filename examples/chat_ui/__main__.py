"""The demo in one command: `python -m examples.chat_ui`, then open the two addresses it prints."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Iterator

import uvicorn

from examples.chat_ui.app import create_app
from examples.chat_ui.engine import CHAT_KEY, CROWD_KEYS, MODEL, gated_engine

GRACE_S = 2


class _Server(uvicorn.Server):
    """Two servers share one process: the signals are handled once, below."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: object, port: int) -> _Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # any ASGI app
        host="127.0.0.1",
        port=port,
        interface="asgi3",
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
    )
    return _Server(config)


async def _serve(options: argparse.Namespace) -> None:
    servers = []
    engine_url, key = options.engine_url, options.key
    crowd_keys: tuple[str, ...] = ()
    if engine_url is None:
        engine_url, key, crowd_keys = f"http://127.0.0.1:{options.gate_port}", CHAT_KEY, CROWD_KEYS
        servers.append(_server(gated_engine(), options.gate_port))
    console_url = f"{engine_url.rstrip('/')}/tidegate/"
    app = create_app(engine_url, model=options.model, key=key, crowd_keys=crowd_keys, console_url=console_url)
    servers.append(_server(app, options.port))

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop)
    print(f"Chat page:       http://127.0.0.1:{options.port}/")
    print(f"Operator's page: {console_url}")
    print('Press "Start a flood" on the chat page, then send a message. Ctrl-C ends it.', flush=True)
    await asyncio.gather(*(server.serve() for server in servers))


def main() -> None:
    """Read the options and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.chat_ui", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="of the chat page (default 8080)")
    parser.add_argument("--gate-port", type=int, default=8081, help="of the gated simulator (default 8081)")
    parser.add_argument("--engine-url", help="use this gated engine, e.g. a vLLM, instead of the simulator")
    parser.add_argument("--model", default=MODEL, help="model name to ask for")
    parser.add_argument("--key", default="", help="API key for --engine-url")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
