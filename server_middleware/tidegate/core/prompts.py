"""How many tokens a prompt holds, before anybody has tokenised it.

Law of this file: bytes are counted by kind, because scripts differ: English and code take one token per
three or four ASCII bytes, Chinese one or two tokens per character of three bytes. Two coefficients per
tenant and model, learnt from reported usage by normalised least mean squares (Widrow-Hoff; the first report
counts in full, the second by half, until the usual rate is reached).

A tenant nothing has been reported of is taken for the model's average one: the prior of the options, times
what all prompts of that model have held over it. Where the engine counts the prompt tokens it reads, that
scale begins cautious and the caution is gone after a few prompts (`prompt_counter`): a cold gate whose
tokenizer is denser than its prior would else fill the cache with twice what fits.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tidegate.core.decisions import Ask

OTHER_TOKENS_PER_BYTE = 0.5  # 1.5 tokens per CJK character
LEARNING_RATE = 0.3
LEAST, MOST = 0.02, 2.0  # tokens per byte; beyond these a report is not about this prompt
MAX_REMEMBERED = 20_000
MAX_MODELS = 256
CAUTION = 1.5  # tokens over those of the prior that are charged while nothing is known: two ASCII bytes each
CAUTION_TOKENS = 500.0  # of the prior: what the caution weighs against what has been counted
REMEMBERED_TOKENS = 20_000.0  # of the prior: older prompts fade
LEAST_SCALE, MOST_SCALE = 0.3, 4.0
SPREAD = 1.05  # of strangers around the average


Text = tuple[float, float]
"""Bytes by kind: ASCII and others."""

NO_TEXT: Text = (0.0, 0.0)


@dataclass(slots=True)
class _Density:
    """Tokens per byte of each kind, the mean relative error of late, and the reports so far."""

    ascii_tokens: float
    other_tokens: float
    error: float = 0.15
    reports: int = 0

    def estimate(self, ascii_bytes: int, other_bytes: int) -> float:
        """Tokens expected of these bytes, plus half the usual error, for safety. At least 1."""
        mean = ascii_bytes * self.ascii_tokens + other_bytes * self.other_tokens
        tokens = mean * (1 + 0.5 * self.error)
        return tokens if tokens > 1.0 else 1.0

    def learn(self, ascii_bytes: int, other_bytes: int, tokens: int) -> None:
        """A prompt of these bytes held so many tokens."""
        ascii_tokens, other_tokens = self.ascii_tokens, self.other_tokens
        miss = tokens - (ascii_bytes * ascii_tokens + other_bytes * other_tokens)
        self.reports += 1
        rate = 1 / self.reports
        if rate < LEARNING_RATE:
            rate = LEARNING_RATE
        step = rate * miss / (ascii_bytes * ascii_bytes + other_bytes * other_bytes)
        ascii_tokens += step * ascii_bytes
        other_tokens += step * other_bytes
        self.ascii_tokens = ascii_tokens if LEAST < ascii_tokens < MOST else _possible(ascii_tokens)
        self.other_tokens = other_tokens if LEAST < other_tokens < MOST else _possible(other_tokens)
        wrong = abs(miss) / tokens
        self.error += 0.1 * ((wrong if wrong < 1.0 else 1.0) - self.error)


def _possible(density: float) -> float:
    return min(MOST, max(LEAST, density))


@dataclass(slots=True)
class _Average:
    """All prompts of a model: tokens counted, and those the prior expected of the same bytes."""

    tokens: float = 0.0
    expected: float = 0.0


class PromptSizes:
    """Tokens per byte, learnt per tenant and model.

    Args:
        bytes_per_token: prior for ASCII bytes.
        max_remembered: tenants and models remembered; the least recently used is forgotten.
    """

    def __init__(self, bytes_per_token: float, max_remembered: int = MAX_REMEMBERED) -> None:
        self._prior = 1.0 / bytes_per_token
        self._max_remembered = max_remembered
        self._known: OrderedDict[tuple[str, str], _Density] = OrderedDict()
        self._averages: OrderedDict[str, _Average] = OrderedDict()
        self.is_counted = False  # the engine counts what it reads: the truth is a few prompts away

    def of(self, ask: Ask) -> float:
        """Tokens expected of an ask by what is known now; what it says itself where it holds no text."""
        if not ask.ascii_bytes and not ask.other_bytes:
            return ask.prompt_tokens
        return self.estimate(ask.tenant, ask.model, ask.ascii_bytes, ask.other_bytes)

    def estimate(self, tenant: str, model: str, ascii_bytes: int, other_bytes: int) -> float:
        """Tokens expected of these bytes; at least 1."""
        key = (tenant, model)
        density = self._known.get(key)
        if density is None:
            return self._of_stranger(model, ascii_bytes, other_bytes)
        self._known.move_to_end(key)
        return density.estimate(ascii_bytes, other_bytes)

    def scale(self, model: str) -> float:
        """Tokens that a stranger's prompt is charged, over those that the prior expects of it."""
        average = self._averages.get(model)
        if average is None:
            return CAUTION if self.is_counted else 1.0
        weight = CAUTION_TOKENS if self.is_counted else 0.0
        mean = (average.tokens + CAUTION * weight) / (average.expected + weight)
        return SPREAD * min(MOST_SCALE, max(LEAST_SCALE, mean))

    def is_known(self, tenant: str, model: str) -> bool:
        """Whether this tenant's own prompts have been reported."""
        return (tenant, model) in self._known

    def learn(self, tenant: str, model: str, ascii_bytes: int, other_bytes: int, tokens: int) -> float:
        """A reported prompt size. Reports that cannot be about these bytes are ignored.

        Returns what an estimate of these bytes has become, over what it was.
        """
        total, key = ascii_bytes + other_bytes, (tenant, model)
        if total <= 0:
            return 1.0
        density = self._known.get(key)
        if density is not None:
            self._known.move_to_end(key)
        if not LEAST <= tokens / total <= MOST:
            return 1.0
        if density is None:
            before = self._of_stranger(model, ascii_bytes, other_bytes)
            density = self._known[key] = _Density(self._prior, OTHER_TOKENS_PER_BYTE)
            if len(self._known) > self._max_remembered:
                self._known.popitem(last=False)
        else:
            before = density.estimate(ascii_bytes, other_bytes)
        self._average(model, tokens, self._expected(ascii_bytes, other_bytes))
        density.learn(ascii_bytes, other_bytes, tokens)
        return density.estimate(ascii_bytes, other_bytes) / before

    def learn_counted(self, texts: dict[str, Text], tokens: float) -> None:
        """So many prompt tokens were read by the engine, of this text by model; one tokenizer for all."""
        expected = {model: self._expected(*text) for model, text in texts.items()}
        total = sum(expected.values())
        for model, share in expected.items():
            if total > 0 and tokens > 0:
                self._average(model, tokens * share / total, share)

    def _of_stranger(self, model: str, ascii_bytes: int, other_bytes: int) -> float:
        return max(1.0, self._expected(ascii_bytes, other_bytes) * self.scale(model))

    def _expected(self, ascii_bytes: float, other_bytes: float) -> float:
        """By the prior."""
        return ascii_bytes * self._prior + other_bytes * OTHER_TOKENS_PER_BYTE

    def _average(self, model: str, tokens: float, expected: float) -> None:
        average = self._averages.get(model)
        if average is None:
            average = self._averages[model] = _Average()
            if len(self._averages) > MAX_MODELS:
                self._averages.popitem(last=False)
        else:
            self._averages.move_to_end(model)
        kept = REMEMBERED_TOKENS / (REMEMBERED_TOKENS + expected)
        average.tokens = kept * average.tokens + tokens
        average.expected = kept * average.expected + expected
