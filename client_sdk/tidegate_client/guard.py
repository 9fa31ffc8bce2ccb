"""The same manners for callers that use neither httpx nor httpx2: a decorator, and a context manager.

Law: the call is the caller's own function, run again as a whole; so it must be one that may be.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from .board import Board
from .call import Call
from .core.policy import RetryPolicy
from .drivers import AsyncDriver, SyncDriver
from .ending import ended
from .errors import RateLimited
from .foreign import AsyncFunction, CallOutcome, CallRequest, SyncFunction, outcome_of
from .judging import judge_answer
from .library import Library
from .setup import set_up
from .timebase import Timebase
from .waiting import GaveUpWaiting
from .waits import OnWait, is_async

P = ParamSpec("P")
R = TypeVar("R")


class Guard:
    """Waits and retries around functions that talk to one server.

        guard = Guard("https://api.example.com")

        @guard
        def ask(question: str) -> str:
            answer = requests.post(...)
            answer.raise_for_status()
            return answer.text

    A refusal is a returned or raised object with a status (`status_code` or `status`) and `headers`, itself
    or as its `response`. When it stands: RateLimited, as from the transports; `on_give_up="response"` passes
    the original on.

    Args:
        origin: the server's name; guards and transports with different names wait apart.
        policy: what the caller is willing to do.
        on_wait: called with a WaitEvent when a call starts to wait.
        connect_errors: what the function raises when no connection came about.
        board: what is known of the servers; the one of the process by default.
        timebase: clock, randomness and sleep; for tests.
    """

    def __init__(
        self,
        origin: str,
        *,
        policy: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        connect_errors: tuple[type[Exception], ...] = (ConnectionRefusedError,),
        board: Board | None = None,
        timebase: Timebase | None = None,
    ) -> None:
        library = Library(
            response=CallOutcome,
            byte_stream=bytes,
            stream_bases=(),
            connect_errors=connect_errors,
            read_errors=(),
            failures=connect_errors,
            decoding_errors=(),
            rate_limited=RateLimited,
            overdue=lambda message, request: TimeoutError(message),
            in_memory=True,
        )
        self._origin = origin
        self._setup = set_up(library, policy, on_wait, board, timebase)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Guard a function or a coroutine function.

        Raises:
            TypeError: a generator function, whose call would be over before anything is sent.

        Raises (when called):
            RateLimited: the refusal stands.
            Exception: whatever the function raised last.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function!r} is a generator function: guard the function that sends, within it."
            )
        if is_async(function):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                inner = AsyncFunction(lambda: function(*args, **kwargs))
                outcome = await AsyncDriver(self._setup, inner).handle(CallRequest(self._origin))
                return outcome.delivered()

            return guarded_async  # type: ignore[return-value]  # R is a coroutine here

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            inner = SyncFunction(lambda: function(*args, **kwargs))
            value: R = SyncDriver(self._setup, inner).handle(CallRequest(self._origin)).delivered()
            return value

        return guarded

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for this process's turn at the server, then run the block once; a refusal it raises is
        remembered.

        Raises:
            RateLimited: the server asked for silence beyond the caller's budget; the block did not run.
        """
        call = Call(CallRequest(self._origin), self._setup)
        try:
            SyncDriver(self._setup, None).wait(call)
        except GaveUpWaiting:
            ended(call, None)
        with _noted(call):
            yield

    @contextlib.asynccontextmanager
    async def turn_async(self) -> AsyncIterator[None]:
        """`turn`, on an event loop.

        Raises:
            RateLimited: as there.
        """
        call = Call(CallRequest(self._origin), self._setup)
        try:
            await AsyncDriver(self._setup, None).wait(call)
        except GaveUpWaiting:
            ended(call, None)
        with _noted(call):
            yield


@contextlib.contextmanager
def _noted(call: Call) -> Iterator[None]:
    call.begin_attempt()
    try:
        yield
    except Exception as error:
        outcome = outcome_of(error)
        if outcome is None:
            call.leave()
        elif call.answer_began(outcome):
            judge_answer(call, outcome, outcome.content)
        raise
    except BaseException:
        call.leave()
        raise
    call.answer_began(CallOutcome(200))
