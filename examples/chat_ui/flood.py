"""The flood of the demo: many other people who use the same chat at once.

Law of this file: they come through the gate's front door like everybody else, and obey what they are told
up to `MAX_TRIES` times. One flood at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

CALLERS = 160
ARRIVE_WITHIN_S = 6.0
MAX_TRIES = 4
OUTPUT_TOKENS = (150, 350)
PROMPT_WORDS = (40, 160)
TIMEOUT_S = 60.0
ERROR_TAIL_CHARACTERS = 2_000  # a refusal after keep-alive comments is an event at the end of the stream


@dataclass(slots=True)
class Flood:
    """One flood and its count. `refused` counts answers of 429, not callers; `keys` are drawn from."""

    client: httpx.AsyncClient
    model: str
    keys: Sequence[str]
    answered: int = 0
    refused: int = 0
    lost: int = 0
    total: int = 0
    _task: asyncio.Task[None] | None = None
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def is_running(self) -> bool:
        """Callers are still under way."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin, unless one is under way."""
        if self.is_running:
            return
        self.answered = self.refused = self.lost = 0
        self.total = CALLERS
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it; callers hang up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def state(self) -> dict[str, int | bool]:
        """What the page shows."""
        return {
            "isRunning": self.is_running,
            "total": self.total,
            "answered": self.answered,
            "refused": self.refused,
            "lost": self.lost,
        }

    async def _run(self) -> None:
        await asyncio.gather(*(self._caller(number) for number in range(CALLERS)))

    async def _caller(self, number: int) -> None:
        await asyncio.sleep(self._random.uniform(0, ARRIVE_WITHIN_S))
        words = " ".join(f"w{number}-{word}" for word in range(self._random.randint(*PROMPT_WORDS)))
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": self._random.randint(*OUTPUT_TOKENS),
            "ignore_eos": True,
            "stream": True,
        }
        key = self._random.choice(self.keys)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        for _ in range(MAX_TRIES):
            wait_s = await self._try(body, headers)
            if wait_s is None:
                return
            self.refused += 1
            await asyncio.sleep(wait_s)
        self.lost += 1

    async def _try(self, body: dict[str, object], headers: dict[str, str]) -> float | None:
        """One attempt, counted unless it was refused; then the seconds to wait."""
        try:
            async with self.client.stream(
                "POST", "/v1/chat/completions", json=body, headers=headers, timeout=TIMEOUT_S
            ) as response:
                text = (await response.aread()).decode("utf-8", "replace")
        except httpx.HTTPError:
            self.lost += 1
            return None
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            return float(response.headers.get("retry-after", 1))
        if response.is_success and '"error"' not in text[-ERROR_TAIL_CHARACTERS:]:
            self.answered += 1
        else:
            self.lost += 1
        return None
