"""The two ways to run a call: on a thread, or on an event loop. The only user of tenacity.

Law: a driver sends, reads, closes and sleeps; it decides nothing. The first attempt runs outside tenacity (a
call that succeeds pays nothing for it); its outcome is handed in as tenacity's first attempt, and from there
the predicate asks the call for its decision, so tenacity's own clock and stop rules are never consulted. The
refused answer is read and closed before the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

import tenacity

from .call import Call
from .ending import ended
from .judging import judge_answer, judge_failure
from .peek import peek, peek_async, until_generated, until_generated_async
from .setup import Setup
from .waiting import GaveUpWaiting, Waiting


class Driver:
    """What both have: the calls that wait, which end with their client.

    Args:
        setup: what all calls have in common.
        inner: what sends them.
    """

    def __init__(self, setup: Setup, inner: Any) -> None:
        self._setup = setup
        self._inner = inner
        self._waiting: set[Call] = set()

    def close(self) -> None:
        """End the calls that wait: nothing is sent for them by a client that its owner has closed."""
        for call in list(self._waiting):
            call.is_closed = True
            if call.turn.signal is not None:
                call.turn.signal.set()


class SyncDriver(Driver):
    """Runs calls on the caller's thread."""

    def handle(self, request: Any) -> Any:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands.
            Exception: whatever the inner transport raised last.
        """
        call = Call(request, self._setup)
        if not call.goes_at_once():
            try:
                self.wait(call)
            except GaveUpWaiting:
                return ended(call, None)
        try:
            response = self._send(call)
        except self._setup.library.failures as error:
            return self._resume(call, First(error=error))
        except BaseException:
            call.leave()
            raise
        return self._resume(call, First(response)) if call.answer_began(response) else response

    def _send(self, call: Call) -> Any:
        return until_generated(call, self._inner.handle_request(call.begin_attempt()))

    def _resume(self, call: Call, first: First) -> Any:
        retrying = tenacity.Retrying(
            retry=lambda state: self._should_resend(call, state),
            wait=lambda state: call.upcoming_s,
            sleep=lambda seconds: self.wait(call),
            reraise=True,
        )
        try:
            response = retrying(lambda: first.take() if first.pending else self._send(call))
        except GaveUpWaiting:
            response = None
        except BaseException:
            call.leave()
            raise
        finally:
            _let_go(retrying)
        return ended(call, response)

    def _should_resend(self, call: Call, state: tenacity.RetryCallState) -> bool:
        error, response = _outcome(state)
        if error is not None:
            return judge_failure(call, error)
        if not call.answer_began(response):
            return call.accept()
        return judge_answer(call, response, peek(call, response))

    def wait(self, call: Call) -> None:
        """Wait until `call` may send its next attempt.

        Raises:
            GaveUpWaiting: the wait does not fit what the caller allowed.
            RuntimeError: the client was closed meanwhile.
        """
        waiting = Waiting(call)
        timebase = self._setup.timebase
        self._waiting.add(call)
        try:
            while (seconds := waiting.poll()) is not None:
                if call.turn.signal is None:  # nothing could wake it since it was asked: ask again
                    call.turn.signal = timebase.signal()
                else:
                    timebase.wait(call.turn.signal, seconds)
        except BaseException:
            call.leave()
            raise
        finally:
            self._waiting.discard(call)
            waiting.over()


class AsyncDriver(Driver):
    """Runs calls on an event loop; cancellation ends an attempt or a wait at once."""

    async def handle(self, request: Any) -> Any:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands.
            Exception: whatever the inner transport raised last.
        """
        call = Call(request, self._setup)
        if not call.goes_at_once():
            try:
                await self.wait(call)
            except GaveUpWaiting:
                return ended(call, None)
        try:
            response = await self._send(call)
        except self._setup.library.failures as error:
            return await self._resume(call, First(error=error))
        except BaseException:
            call.leave()
            raise
        return await self._resume(call, First(response)) if call.answer_began(response) else response

    def _send(self, call: Call) -> Awaitable[Any]:
        if call.is_plain:
            answer: Awaitable[Any] = self._inner.handle_async_request(call.begin_attempt())
            return answer
        return self._in_time(call, self._attempt(call))

    async def _attempt(self, call: Call) -> Any:
        return await until_generated_async(call, await self._inner.handle_async_request(call.begin_attempt()))

    async def _in_time(self, call: Call, attempt: Coroutine[Any, Any, Any]) -> Any:
        """The attempt's answer, if it begins before the deadline: the time-outs alone start anew with each
        piece that arrives.
        """
        left_s = call.left_s
        if left_s is None:
            return await attempt
        ends: tuple[type[Exception], ...] = (asyncio.TimeoutError, *self._setup.library.failures)
        try:
            return await self._setup.timebase.within(max(left_s, 0.001), attempt)
        except ends:
            call.check_deadline()  # a phase's own time-out may win by a hair: the deadline is what has passed
            raise

    async def _resume(self, call: Call, first: First) -> Any:
        async def attempt() -> Any:
            return first.take() if first.pending else await self._send(call)

        async def should_resend(state: tenacity.RetryCallState) -> bool:
            return await self._should_resend(call, state)

        async def pause(seconds: float) -> None:
            await self.wait(call)

        retrying = tenacity.AsyncRetrying(
            retry=should_resend, wait=lambda state: call.upcoming_s, sleep=pause, reraise=True
        )
        try:
            response: Any = await retrying(attempt)
        except GaveUpWaiting:
            response = None
        except BaseException:
            call.leave()
            raise
        finally:
            _let_go(retrying)
        return ended(call, response)

    async def _should_resend(self, call: Call, state: tenacity.RetryCallState) -> bool:
        error, response = _outcome(state)
        if error is not None:
            return judge_failure(call, error)
        if not call.answer_began(response):
            return call.accept()
        return judge_answer(call, response, await peek_async(call, response))

    async def wait(self, call: Call) -> None:
        """Wait until `call` may send its next attempt.

        Raises:
            GaveUpWaiting: the wait does not fit what the caller allowed.
            RuntimeError: the client was closed meanwhile.
        """
        waiting = Waiting(call)
        timebase = self._setup.timebase
        self._waiting.add(call)
        try:
            while (seconds := waiting.poll()) is not None:
                if call.turn.signal is None:  # nothing could wake it since it was asked: ask again
                    call.turn.signal, call.turn.home = timebase.loop_signal(), timebase.loop()
                else:
                    await timebase.wait_async(call.turn.signal, seconds)
        except BaseException:
            call.leave()
            raise
        finally:
            self._waiting.discard(call)
            waiting.over()


class First:
    """The outcome of the attempt made before tenacity was asked, to be taken once."""

    def __init__(self, response: Any = None, error: Exception | None = None) -> None:
        self.pending = True
        self._response = response
        self._error = error

    def take(self) -> Any:
        """Return the answer, or raise the error, and let go of both."""
        response, error = self._response, self._error
        self.pending, self._response, self._error = False, None, None
        if error is not None:
            raise error
        return response


def _let_go(retrying: tenacity.BaseRetrying) -> None:
    """Part tenacity's object, which refers to itself and so waits for the collector, from the call."""
    vars(retrying).update(retry=None, wait=None, sleep=None)


def _outcome(state: tenacity.RetryCallState) -> tuple[BaseException | None, Any]:
    outcome = state.outcome
    if outcome is None:
        raise AssertionError("tenacity asks only about attempts that have ended")
    error = outcome.exception()
    return error, None if error is not None else outcome.result()
