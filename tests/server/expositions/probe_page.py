"""A middleware for the real vLLM: finds the source in the API server's process and shows what it reads."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from typing import Any

from tidegate.asgi.types import App, Receive, Scope, Send
from tidegate.probes.auto import find_probe
from tidegate.probes.options import ProbeOptions
from tidegate.probes.protocol import Probe, as_readings

PATH = "/probe"


class ProbePage:
    """Answers `/probe` with the choice and one reading; passes everything else on."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._probe: Probe | None = None
        self._why = ""
        self._one_at_a_time = asyncio.Lock()  # as a poller reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if self._probe is None:
            self._probe, self._why = find_probe(ProbeOptions(), host_app=scope.get("app"))
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        shown: dict[str, Any] = {"pid": os.getpid(), "why": self._why}
        try:
            async with self._one_at_a_time:
                shown["readings"] = [asdict(reading) for reading in as_readings(await self._probe.read())]
        except Exception as error:  # noqa: BLE001 - shown to the test
            shown["error"] = repr(error)
        body = json.dumps(shown).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})
