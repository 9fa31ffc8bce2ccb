"""A probe that reads a script instead of an engine.

Law of this file: the answers come in the order given and the last one stays, so a test states what the gate
sees and when. An exception in the script is raised, an async callable is awaited (one that never returns is
a hung probe).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from tidegate.core.reading import Reading

Answer = Reading | list[Reading] | float | Exception | Callable[[], Awaitable[Reading]]


class ScriptedProbe:
    """A probe whose readings a test writes down beforehand, or changes as it goes.

    Args:
        answers: at least one; a bare float is taken as the KV usage in 0..1.

    Raises:
        ValueError: no answer was given.
    """

    def __init__(self, *answers: Answer) -> None:
        if not answers:
            raise ValueError("ScriptedProbe() has no answers; give at least one, for example 0.5.")
        self._answers = deque(answers)
        self.reads = 0

    def then(self, *answers: Answer) -> None:
        """Replaces what is left of the script."""
        self._answers = deque(answers or self._answers)

    async def read(self) -> Reading | list[Reading]:
        """The next answer of the script."""
        self.reads += 1
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Reading | list):
            return answer
        if callable(answer):
            return await answer()
        return Reading(kv_usage=answer)
