"""How fast an engine reads prompts, and how many tokens may be outstanding for that.

Law of this file: only a busy engine shows its speed. The rate is the greatest seen over whole seconds, since
engines count a prompt when all of it has been read; it decays slowly, never falls below what one step may
read, and grows where the bound itself holds requests back from an engine that reads whatever it is given.
"""

from __future__ import annotations

from tidegate.core.reading import Reading

PREFILL_S = 2.0  # of the measured rate may be outstanding
LOWER_SHARE = 0.75  # of that bound, for classes whose ceiling is not the top one
LEAST_RATE = 4096.0  # a step's budget of 8,192 tokens in that time: lower figures measure demand, not speed
DECAY_PER_S = 0.01
SPAN_S = 1.0
GROWTH = 1.5  # per reading that finds no queue in the engine while the bound holds requests back


class Prefill:
    """The bound of one instance.

    Args:
        most_tokens: unread at once; `None`: two seconds of the measured rate.
    """

    def __init__(self, most_tokens: int | None) -> None:
        self._most_tokens = most_tokens
        self._from: tuple[float, float | None] = (0.0, None)  # instant and counter of the span
        self.is_binding = False
        self.rate = 0.0  # tokens per second, 0 while unknown

    def exceeds(self, unread: float, prompt: float, share: float, is_lowered: bool) -> bool:
        """Whether one more prompt is too much beside so many unread tokens, where `share` may be used."""
        most: float | None = self._most_tokens
        if most is None:
            if self.rate <= 0:
                return False
            most = self.rate * PREFILL_S
        return unread + prompt > most * share * (LOWER_SHARE if is_lowered else 1.0)

    def observe(self, reading: Reading, now: float) -> None:
        """Take in a reading."""
        if self.is_binding and reading.waiting == 0:
            self.rate *= GROWTH
        self.is_binding = False
        tokens = reading.prompt_tokens
        since, before = self._from
        if tokens is None or (before is not None and tokens < before):  # not told, or restarted
            self._from = (now, tokens)
        elif before is None or now - since >= SPAN_S:
            decayed = self.rate * max(0.0, 1 - DECAY_PER_S * (now - since))
            if before is not None:
                self.rate = max(LEAST_RATE, decayed, (tokens - before) / (now - since))
            self._from = (now, tokens)
