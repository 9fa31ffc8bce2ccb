"""Runs the engine against a clock and hands its tokens to whoever waits for them.

Law of this file: one task steps the engine, and only while it has work; every request that came in leaves
through `Ticket.close`, which cancels what is left of it. The pace is the engine's: a step's tokens are
delivered when the step ends, and a late wake-up is caught up, not added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from tidegate.testing.engine import EngineSimulator


class Ticket:
    """One answer under way: how many of each sequence's tokens exist, and an event when there are more."""

    def __init__(self, driver: EngineDriver, lengths: list[int]) -> None:
        self._driver = driver
        self._news = asyncio.Event()
        self.lengths = lengths
        self.tokens = [0] * len(lengths)

    @property
    def finished(self) -> bool:
        """Whether every sequence has its whole length."""
        return self.tokens == self.lengths

    def add(self, sequence: int) -> None:
        """One more token of that sequence."""
        self.tokens[sequence] += 1
        self._news.set()

    async def wait(self) -> None:
        """Returns when there are tokens that the last call had not seen."""
        await self._news.wait()
        self._news.clear()

    def close(self) -> None:
        """Ends the request; what has not been generated never will be. Idempotent."""
        self._driver.close(self)


class EngineDriver:
    """Steps an engine in real time, or in a test's time.

    Args:
        engine: the engine.
        clock: seconds, monotonic.
        sleep: waits that many seconds of the same clock.
    """

    def __init__(
        self, engine: EngineSimulator, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._sleep = sleep
        self._owners: dict[int, tuple[Ticket, int]] = {}
        self._next_id = 0
        self._task: asyncio.Task[None] | None = None

    def submit(self, sequences: Iterable[tuple[int, int, tuple[bytes, ...]]]) -> Ticket:
        """Starts sequences of (prompt tokens, output tokens, prefix identities) that make up one answer."""
        specs = list(sequences)
        ticket = Ticket(self, [output for _, output, _ in specs])
        for index, (prompt, output, prefix) in enumerate(specs):
            self.engine.submit(self._next_id, prompt_tokens=prompt, output_tokens=output, prefix=prefix)
            self._owners[self._next_id] = (ticket, index)
            self._next_id += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Cancels the sequences of `ticket` that are still alive."""
        for id_ in [id_ for id_, (owner, _) in self._owners.items() if owner is ticket]:
            self.engine.cancel(id_)
            del self._owners[id_]

    async def _run(self) -> None:
        due_s = self._clock()
        while self.engine.has_work:
            report = self.engine.step(due_s)
            due_s = report.ends_at_s
            await self._sleep(max(0.0, due_s - self._clock()))
            for id_ in report.advanced:
                if owner := self._owners.get(id_):  # type: ignore[call-overload]
                    owner[0].add(owner[1])
            for id_ in report.finished:
                self._owners.pop(id_, None)  # type: ignore[call-overload]
