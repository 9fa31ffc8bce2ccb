"""Conversations that the engine goes on with by itself: `previous_response_id` and its like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.bed import Bed, bed
from tidegate.asgi.conversations import Conversations

RESPONSES = "/v1/responses"


def answer(name: str, prompt: int, output: int, *, streams: bool = False) -> bytes:
    """A whole response, or the last event of its stream."""
    usage = {"input_tokens": prompt, "output_tokens": output}
    response = {"id": name, "status": "completed", "usage": usage}
    if streams:
        return b"data: " + json.dumps({"type": "response.completed", "response": response}).encode() + b"\n\n"
    return json.dumps(response).encode()


def estimate(b: Bed, tenant: str = "address-127.0.0.1") -> float:
    found: float = b.runtime.room.estimate_prompt_tokens(tenant, "m", 30_000, 0)
    return found


@pytest.mark.parametrize(
    "kept", [{"previous_response_id": "resp_0"}, {"conversation": "c"}, {"session_params": {"id": "s"}}]
)
async def test_what_was_said_before_teaches_nothing_of_the_tokenizer(kept: dict[str, Any]) -> None:
    """2,000 bytes are reported as 3,000 tokens: those of an hour of talk. Others would pay for it too."""
    async with bed() as b:
        b.app.chunks = [answer("resp_1", 3_000, 20)]
        before = estimate(b), estimate(b, "another")
        for _ in range(5):
            response = await b.post({"model": "m", "input": "x" * 2_000, **kept}, path=RESPONSES)
            assert response.status_code == 200
        assert (estimate(b), estimate(b, "another")) == before


async def test_media_of_a_conversation_pay_for_nothing_that_was_said_before() -> None:
    """The price of an image is everybody's."""
    async with bed() as b:
        b.app.chunks = [answer("resp_1", 50_000, 20)]
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        body = {"model": "m", "input": image, "previous_response_id": "resp_0"}
        assert (await b.post(body, path=RESPONSES)).status_code == 200
        assert b.gate._runtime is not None
        assert b.gate._runtime._builder._media.tokens_per_item("m") == 1_000


@pytest.mark.parametrize("streams", [False, True])
async def test_who_goes_on_is_charged_for_what_was_said_before(streams: bool) -> None:
    """Prompt and answer of the response that is named, as the engine reported them; once it is known."""
    async with bed() as b:
        held: list[float] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            held.append(b.runtime.statistics().instances[0].held_tokens)
            await inner(scope, receive, send)

        inner = b.app
        b.runtime.door._app = app
        inner.chunks = [answer("resp_1", 4_000, 1_000, streams=streams)]
        first = {"model": "m", "input": "x", "stream": streams, "max_output_tokens": 16}
        for body in (
            first,
            {**first, "previous_response_id": "resp_1"},
            {**first, "previous_response_id": "no"},
        ):
            assert (await b.post(body, path=RESPONSES)).status_code == 200
        assert held[1] - held[0] == pytest.approx(5_000, abs=50)
        assert held[2] == pytest.approx(held[0], abs=50)


def test_memory_is_bounded_by_recent_use() -> None:
    """Each answer has an id of its own."""
    known = Conversations(most_remembered=2)
    for name in ("a", "b"):
        known.observed(name, 7)
    assert known.tokens_before("a") == 7
    known.observed("c", 8)
    known.observed("d" * 1_000, 9)
    found = [known.tokens_before(name) for name in ("a", "b", "c", "d" * 1_000, None)]
    assert found == [7, 0, 8, 0, 0]
