"""The same manners for callers that use neither httpx nor httpx2: a decorator, and a context manager.

Law: the call is the caller's own function, run again as a whole; so it must be one that may be. What it
returns or raises is read for a status and headers, the way requests, aiohttp and the SDKs carry them;
anything else is passed on.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from .board import Board
from .call import Call
from .core.policy import RetryPolicy
from .drivers import AsyncDriver, SyncDriver, set_up
from .ending import ended
from .errors import RateLimited
from .library import Library
from .timebase import Timebase
from .waiting import GaveUpWaiting
from .waits import OnWait

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
            response=_Outcome,
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

        Raises (when called):
            RateLimited: the refusal stands.
            Exception: whatever the function raised last.
        """
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                inner = _AsyncInner(lambda: function(*args, **kwargs))
                outcome = await AsyncDriver(self._setup, inner).handle(_Request(self._origin))
                return outcome.delivered()

            return guarded_async  # type: ignore[return-value]  # R is a coroutine here

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            inner = _SyncInner(lambda: function(*args, **kwargs))
            value: R = SyncDriver(self._setup, inner).handle(_Request(self._origin)).delivered()
            return value

        return guarded

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for this process's turn at the server, then run the block once; a refusal it raises is
        remembered.

        Raises:
            RateLimited: the server asked for silence beyond the caller's budget; the block did not run.
        """
        call = Call(_Request(self._origin), self._setup)
        try:
            SyncDriver(self._setup, None).wait(call)
        except GaveUpWaiting:
            ended(call, None)
        with _noted(call):
            yield

    @contextlib.asynccontextmanager
    async def turn_async(self) -> AsyncIterator[None]:
        """`turn`, on an event loop."""
        call = Call(_Request(self._origin), self._setup)
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
        outcome = _outcome_of(error)
        call.arrived()
        if outcome is None:
            call.leave()
        elif call.answer_began(outcome):
            call.judge_answer(outcome, outcome.content)
        raise
    except BaseException:
        call.leave()
        raise
    call.arrived()
    call.answer_began(_Outcome(200))


class _Headers(dict[str, str]):
    """Headers by lower-case name, with the two views of httpx's that are used here."""

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        return [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in self.items()
        ]

    def multi_items(self) -> list[tuple[str, str]]:
        return list(self.items())


class _Url:
    def __init__(self, origin: str) -> None:
        self.scheme, _, host = origin.rpartition("://")
        self.netloc = host.encode("ascii", "replace")


class _Request:
    """What stands for the request: a call of the caller's function, which may be made again."""

    _content = b""
    method = "GET"

    def __init__(self, origin: str) -> None:
        self.url = _Url(origin)
        self.headers = _Headers()
        self.extensions: dict[str, Any] = {}


class _Outcome:
    """What stands for the response: the function's value or error, and what they say about the server."""

    def __init__(
        self,
        status_code: int,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        *,
        json: object = None,
        value: Any = None,
        error: Exception | None = None,
    ) -> None:
        self.status_code = status_code
        self.headers = _Headers({str(name).lower(): str(text) for name, text in (headers or {}).items()})
        self.content = content
        self.extensions: dict[str, Any] = {}
        self.request: Any = None
        self.value = value
        self.error = error

    def delivered(self) -> Any:
        """The value the function returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


class _SyncInner:
    """The function in the place of a transport."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def handle_request(self, _request: Any) -> _Outcome:
        try:
            value = self._run()
        except Exception as error:
            outcome = _outcome_of(error)
            if outcome is None:
                raise
            return outcome
        return _outcome_of(value) or _Outcome(200, value=value)


class _AsyncInner:
    """The coroutine function in the place of a transport."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    async def handle_async_request(self, _request: Any) -> _Outcome:
        try:
            value = await self._run()
        except Exception as error:
            outcome = _outcome_of(error)
            if outcome is None:
                raise
            return outcome
        return _outcome_of(value) or _Outcome(200, value=value)


def _outcome_of(result: Any) -> _Outcome | None:
    """The answer that a returned value or a raised error carries, None when it carries none."""
    error = result if isinstance(result, Exception) else None
    for carrier in (result, getattr(result, "response", None)):
        status = getattr(carrier, "status_code", None) or getattr(carrier, "status", None)
        headers = getattr(carrier, "headers", None)
        if isinstance(status, int) and isinstance(headers, Mapping):
            content = getattr(carrier, "content", b"")
            content = content if isinstance(content, bytes) else b""
            return _Outcome(status, headers, content, value=result, error=error)
    return None
