"""How many tokens a prompt holds, before anybody has tokenised it.

Law of this file: bytes are counted by kind, because scripts differ: English and code take one token per
three or four ASCII bytes, Chinese one or two tokens per character of three bytes. Two coefficients per
tenant and model, learnt from reported usage by normalised least mean squares (Widrow-Hoff), start from
the prior of the options.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

OTHER_TOKENS_PER_BYTE = 0.5  # 1.5 tokens per CJK character
LEARNING_RATE = 0.3
LEAST, MOST = 0.02, 2.0  # tokens per byte; beyond these a report is not about this prompt
MAX_REMEMBERED = 20_000


@dataclass(slots=True)
class _Density:
    """Tokens per byte of each kind, and the mean relative error of late."""

    ascii_tokens: float
    other_tokens: float
    error: float = 0.15


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

    def estimate(self, tenant: str, model: str, ascii_bytes: int, other_bytes: int) -> float:
        """Tokens expected of these bytes, plus half the usual error, for safety. At least 1."""
        density = self._known.get((tenant, model))
        if density is None:
            return max(1.0, ascii_bytes * self._prior + other_bytes * OTHER_TOKENS_PER_BYTE)
        self._known.move_to_end((tenant, model))
        mean = ascii_bytes * density.ascii_tokens + other_bytes * density.other_tokens
        return max(1.0, mean * (1 + 0.5 * density.error))

    def learn(self, tenant: str, model: str, ascii_bytes: int, other_bytes: int, tokens: int) -> None:
        """A reported prompt size. Reports that cannot be about these bytes are ignored."""
        total = ascii_bytes + other_bytes
        if total <= 0 or not LEAST <= tokens / total <= MOST:
            return
        density = self._known.get((tenant, model))
        if density is None:
            density = self._known[tenant, model] = _Density(self._prior, OTHER_TOKENS_PER_BYTE)
            if len(self._known) > self._max_remembered:
                self._known.popitem(last=False)
        expected = ascii_bytes * density.ascii_tokens + other_bytes * density.other_tokens
        miss = tokens - expected
        step = LEARNING_RATE * miss / (ascii_bytes**2 + other_bytes**2)
        density.ascii_tokens = min(MOST, max(LEAST, density.ascii_tokens + step * ascii_bytes))
        density.other_tokens = min(MOST, max(LEAST, density.other_tokens + step * other_bytes))
        density.error += 0.1 * (min(1.0, abs(miss) / tokens) - density.error)
