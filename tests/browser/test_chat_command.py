"""The demo's one command, as a person starts it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import httpx

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
QUESTION = {"messages": [{"role": "user", "content": "hello"}]}


async def test_command_prints_two_addresses_serves_and_stops_cleanly() -> None:
    """Both pages answer, a question is answered through the gate, and an interrupt ends it at once."""
    ports = ("--port", str(free_port()), "--gate-port", str(free_port()))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.chat_ui", *ports, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        lines = [(await asyncio.wait_for(process.stdout.readline(), 200)).decode() for _ in range(2)]
        chat_url, console_url = (line.split()[-1] for line in lines)
        async with httpx.AsyncClient(timeout=200) as client:
            for _ in range(2000):
                try:
                    await client.get(chat_url)
                    await client.get(console_url)
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)
            assert "<title>Tidegate chat</title>" in (await client.get(chat_url)).text
            assert "<title>Tidegate</title>" in (await client.get(console_url)).text
            assert (await client.get(f"{chat_url}api/demo")).json() == {"console": console_url}
            answer = await client.post(f"{chat_url}api/chat", json=QUESTION)
            assert answer.text.rstrip().endswith("data: [DONE]")
            state = (await client.get(f"{console_url}state.json")).json()
            assert state["admitted"] == 1
            crossed = await client.post(f"{chat_url}api/flood", headers={"sec-fetch-site": "cross-site"})
            assert crossed.status_code == 403
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 100) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
