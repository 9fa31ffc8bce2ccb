"""What an image or a clip costs in prompt tokens, learnt per model from the usage that engines report.

Law of this file: a price moves only by what was reported for requests with media, stays within bounds,
and memory is bounded, since callers choose model names.
"""

from __future__ import annotations

from collections import OrderedDict

from tidegate.asgi.cost import TOKENS_PER_MEDIA_ITEM

_LEAST_WEIGHT = 0.05  # of a new sample, once there are many
_CHEAPEST, _DEAREST = 1.0, 100_000.0


class MediaPrices:
    """Tokens per media item, an exponentially weighted mean per model.

    Args:
        max_models: models remembered, the least recently used forgotten first.
    """

    def __init__(self, max_models: int = 256) -> None:
        self._max_models = max_models
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def tokens_per_item(self, model: str) -> float:
        """The price by which the next request with media is charged."""
        known = self._known.get(model)
        return TOKENS_PER_MEDIA_ITEM if known is None else known[0]

    def observed(self, model: str, items: int, prompt_tokens: int, other_tokens: float) -> None:
        """A request with `items` media was reported to hold `prompt_tokens`.

        Args:
            model: as the request named it.
            items: of media, at least one; requests without teach nothing.
            prompt_tokens: as the engine reported them.
            other_tokens: what of them was text and token ids, by estimate.
        """
        if items < 1:
            return
        sample = min(max((prompt_tokens - other_tokens) / items, _CHEAPEST), _DEAREST)
        price, count = self._known.pop(model, (sample, 0))
        weight = max(1 / (count + 1), _LEAST_WEIGHT)
        self._known[model] = (price + weight * (sample - price), count + 1)
        if len(self._known) > self._max_models:
            self._known.popitem(last=False)
