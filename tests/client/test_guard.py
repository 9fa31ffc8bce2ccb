"""Waiting for callers that use some other HTTP library."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tidegate_client import Guard, RateLimited, RetryPolicy, Why
from tidegate_client.testing import Board, FakeClock


class Answer:
    """An answer as requests has it."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None, content: bytes = b"") -> None:
        self.status_code, self.headers, self.content = status_code, headers or {}, content


class HttpError(Exception):
    """An error that carries its answer, as `requests.HTTPError` does."""

    def __init__(self, response: Answer) -> None:
        super().__init__(response.status_code)
        self.response = response


class ClientResponseError(Exception):
    """An error that is its own answer, as aiohttp's is."""

    status = 429
    headers = {"Retry-After": "2"}  # noqa: RUF012  as aiohttp has it


BUSY = Answer(429, {"Retry-After": "2"}, b'{"error": {"reason": "queue_full"}}')


def guard(**options: Any) -> tuple[Guard, FakeClock]:
    """A guard on a fake clock, with a board of its own."""
    clock = FakeClock(uniform=0.5)
    return Guard("https://api.example", timebase=clock, board=Board(), **options), clock


@pytest.mark.parametrize(
    "refusal", [BUSY, HttpError(BUSY), ClientResponseError()], ids=["value", "error", "aiohttp"]
)
def test_a_function_is_called_again_after_the_wait(refusal: Any) -> None:
    """A returned or raised refusal is waited for; then the value comes back."""
    guarded, clock = guard()
    outcomes = [refusal, "done"]

    @guarded
    def ask(word: str) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if outcome is refusal else f"{outcome} {word}"

    assert ask("well") == "done well"
    assert clock.now == 1002.5
    assert ask.__name__ == "ask"


async def test_a_coroutine_function_too() -> None:
    """The same on an event loop."""
    guarded, clock = guard()
    outcomes: list[Any] = [HttpError(BUSY), ConnectionRefusedError(), Answer(200)]

    @guarded
    async def ask() -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert (await ask()).status_code == 200
    assert clock.now > 1002.5


def test_what_is_no_refusal_passes() -> None:
    """Values without a status, other answers and other errors come through untouched, after one call."""
    guarded, clock = guard()
    fault = ValueError("mine")
    not_found = HttpError(Answer(404))

    def failing(error: Exception) -> None:
        raise error

    assert guarded(lambda: None)() is None
    assert guarded(lambda: 7)() == 7
    for error in (fault, not_found):
        with pytest.raises(type(error)) as caught:
            guarded(failing)(error)
        assert caught.value is error
    assert clock.waits == []


async def test_an_object_that_is_awaited_too() -> None:
    """What has to be awaited is awaited, function or not; what sends later cannot be guarded."""
    guarded, clock = guard()
    outcomes: list[Any] = [HttpError(BUSY)]

    class Ask:
        async def __call__(self) -> str:
            if outcomes:
                raise outcomes.pop()
            return "done"

    assert await guarded(Ask())() == "done"
    assert clock.now == 1002.5

    def events() -> Any:
        yield 1

    async def events_async() -> Any:
        yield 1

    for generator in (events, events_async):
        with pytest.raises(TypeError, match="is a generator function: guard the function that sends"):
            guarded(generator)


class Streamed(Answer):
    """An answer whose body has not been read: to look at it reads it, or fails."""

    def __init__(self, status_code: int) -> None:
        self.status_code, self.headers = status_code, {"Retry-After": "2"}
        self.was_looked_at = False

    @property
    def content(self) -> bytes:  # type: ignore[override]  # as the libraries have it
        self.was_looked_at = True
        raise RuntimeError("not read yet")


def test_a_streamed_answer_is_not_read() -> None:
    """Neither a good one, which may have no end, nor one that cannot be read; its headers tell enough."""
    guarded, clock = guard()
    outcomes = [Streamed(429), good := Streamed(200)]

    assert guarded(lambda: outcomes.pop(0))() is good
    assert not good.was_looked_at
    assert clock.now == 1002.5


def test_a_refusal_that_stands() -> None:
    """Over the budget: RateLimited, or with on_give_up="response" the original error."""
    late = Answer(429, {"Retry-After": "900"})

    def ask() -> None:
        raise HttpError(late)

    with pytest.raises(RateLimited) as caught:
        guard()[0](ask)()
    assert (caught.value.retry_after, caught.value.why) == (900, Why.OVER_BUDGET)

    with pytest.raises(HttpError):
        guard(policy=RetryPolicy(on_give_up="response"))[0](ask)()


async def test_a_block_takes_its_turn() -> None:
    """A `with` block waits for what others were told, and tells them what it met; it is never run again."""
    guarded, clock = guard()
    with pytest.raises(HttpError), guarded.turn():
        raise HttpError(BUSY)
    with guarded.turn():
        assert clock.now == 1002.5
    async with guarded.turn_async():
        assert clock.now < 1003.0

    with pytest.raises(HttpError), guarded.turn():
        raise HttpError(Answer(429, {"Retry-After": "300"}))
    with pytest.raises(RateLimited):
        async with guarded.turn_async():
            pytest.fail("the block must not run")
    with pytest.raises(RateLimited), guarded.turn():
        pytest.fail("the block must not run")


def test_a_block_that_fails_for_its_own_reasons() -> None:
    """An error without an answer, or an interrupt, says nothing about the server and passes."""
    guarded, _ = guard()
    for error in (ValueError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), guarded.turn():
            raise error
    with guarded.turn():
        pass


def test_a_guarded_block_that_fails_with_an_answer_of_another_kind() -> None:
    """A 500 inside a turn is no refusal: it passes, and the next turn does not wait."""

    class Failed(Exception):
        response = httpx.Response(500)

    clock = FakeClock()
    guard = Guard("https://api.example", timebase=clock, board=Board())
    with pytest.raises(Failed), guard.turn():
        raise Failed
    with guard.turn():
        assert clock.waits == []
