"""Prices of media, learnt per model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.asgi.classify import RouteTable
from tidegate.asgi.cost import TOKENS_PER_MEDIA_ITEM, Cost, cost_of
from tidegate.asgi.media import MediaPrices


def test_unknown_models_pay_the_prior() -> None:
    """Until something was reported."""
    assert MediaPrices().tokens_per_item("m") == TOKENS_PER_MEDIA_ITEM


def test_the_first_report_sets_the_price_and_later_ones_move_it() -> None:
    """Two items, 600 tokens beside 100 of text: 250 each; a long history is moved little by one sample."""
    prices = MediaPrices()
    prices.observed("m", 2, 600, 100.0)
    assert prices.tokens_per_item("m") == 250
    for _ in range(100):
        prices.observed("m", 1, 1000, 0.0)
    settled = prices.tokens_per_item("m")
    assert settled == pytest.approx(1000, rel=0.05)
    prices.observed("m", 1, 10_000, 0.0)
    assert settled < prices.tokens_per_item("m") < 2000


def test_models_do_not_mix_and_requests_without_media_teach_nothing() -> None:
    """Each model has its own encoder."""
    prices = MediaPrices()
    prices.observed("a", 1, 300, 0.0)
    prices.observed("b", 0, 300, 0.0)
    assert prices.tokens_per_item("a") == 300
    assert prices.tokens_per_item("b") == TOKENS_PER_MEDIA_ITEM


def test_memory_is_bounded_by_recent_use() -> None:
    """Callers choose model names."""
    prices = MediaPrices(max_models=2)
    for model in ("a", "b", "a", "c"):
        prices.observed(model, 1, 300, 0.0)
    assert [prices.tokens_per_item(model) for model in "abc"] == [300, TOKENS_PER_MEDIA_ITEM, 300]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**9), st.floats(0, 1e9)), max_size=20))
@settings(deadline=None)
def test_prices_stay_within_bounds(samples: list[tuple[int, int, float]]) -> None:
    """Whatever is reported."""
    prices = MediaPrices()
    for items, tokens, other in samples:
        prices.observed("m", items, tokens, other)
    assert 1 <= prices.tokens_per_item("m") <= 100_000


@pytest.mark.parametrize("key", ["image_url", "audio_url", "video_url", "input_audio", "image_embeds"])
@pytest.mark.parametrize("content", ["w" * 30_000, [{"type": "text", "text": "w" * 30_000}]])
def test_a_key_of_media_beside_a_text_hides_nothing_of_it(key: str, content: object) -> None:
    """Engines read a message's text whatever stands beside it; who hid it would be charged for one image."""
    chat = _chat([{"role": "user", "content": content, key: "x"}])
    assert chat.ascii_bytes >= 30_000
    part = _chat([{"role": "user", "content": [{"type": "text", "text": "w" * 30_000, key: "x"}]}])
    assert part.ascii_bytes >= 30_000


@pytest.mark.parametrize("kind", ["file", "image", "document", "input_audio"])
def test_a_message_is_no_medium_whatever_type_it_names(kind: str) -> None:
    """It has a role."""
    assert _chat([{"role": "user", "type": kind, "content": "w" * 30_000}]).ascii_bytes >= 30_000


@pytest.mark.parametrize("kind", ["image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"])
def test_tensors_are_no_text(kind: str) -> None:
    """A token of them takes thousands of bytes: priced as text they would fit no engine."""
    part = _chat(
        [{"role": "user", "content": [{"type": kind, kind: "A" * 1_000_000, "data": "A" * 1_000_000}]}]
    )
    assert (part.media_items, part.ascii_bytes < 100) == (1, True)


@pytest.mark.parametrize(("embeds", "prompts"), [("A" * 8_000_000, 1), (["A" * 1_000_000] * 3, 3)])
def test_prompts_as_tensors_are_refused_by_no_length(embeds: object, prompts: int) -> None:
    """8 MB are some hundred tokens; taken for text they are certain to exceed any context."""
    found = _priced("/v1/completions", {"prompt_embeds": embeds, "max_tokens": 5})
    assert (found.prompts, found.sequences, found.media_items) == (prompts, prompts, prompts)
    assert (found.ascii_bytes, found.prompt_tokens_floor) == (0, 0)


def test_images_to_be_embedded_are_images() -> None:
    """Cohere's way: a list of data URLs, each a prompt of its own."""
    found = _priced("/v2/embed", {"images": ["data:image/png;base64," + "A" * 5_000_000] * 2})
    assert (found.prompts, found.media_items) == (2, 2)
    assert (found.ascii_bytes, found.prompt_tokens_floor) == (0, 0)


@pytest.mark.parametrize(
    ("path", "fields", "items"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "hi", "images": ["A" * 3_000_000] * 2}]}, 2),
        ("/v1/embeddings", {"input": [{"text": "hi", "image": "A" * 3_000_000}] * 3}, 3),
    ],
)
def test_images_beside_a_text_are_images(path: str, fields: dict[str, object], items: int) -> None:
    """Ollama's messages carry them in a list, SGLang's inputs each; as text one would be a million tokens."""
    found = _priced(path, fields)
    assert (found.media_items, found.ascii_bytes < 100) == (items, True)


def test_scores_of_data_are_charged() -> None:
    """vLLM's newest names for the two sides of `/score`; unread they were free."""
    found = _priced("/score", {"data_1": "a" * 100, "data_2": ["b" * 100] * 4})
    assert (found.ascii_bytes, found.prompts) == (800, 4)


def _priced(path: str, fields: dict[str, object]) -> Cost:
    route = RouteTable().match({"type": "http", "method": "POST", "path": path})
    assert route is not None
    return cost_of(fields, route)


def _chat(messages: list[dict[str, object]]) -> Cost:
    return _priced("/v1/chat/completions", {"messages": messages})
