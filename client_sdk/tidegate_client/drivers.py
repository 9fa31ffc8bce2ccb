"""The two ways to run a call: on a thread, or on an event loop. The only user of tenacity.

Law: a driver sends, reads, closes and sleeps; it decides nothing. The first attempt runs outside tenacity (a
call that succeeds pays nothing for it); its outcome is handed in as tenacity's first attempt, and from there
the predicate asks the call for its decision, so tenacity's own clock and stop rules are never consulted. The
refused answer is read and closed before the wait.
"""

from __future__ import annotations

from typing import Any

import tenacity

from .call import Call
from .core.policy import RetryPolicy
from .library import Library
from .peek import peek, peek_async
from .timebase import REAL_TIME, Timebase
from .waits import OnWait


class Driver:
    """What both drivers hold."""

    def __init__(
        self,
        library: Library,
        inner: Any,
        policy: RetryPolicy | None,
        on_wait: OnWait | None,
        timebase: Timebase | None,
    ) -> None:
        self.library = library
        self.inner = inner
        self.policy = policy or RetryPolicy()
        self.on_wait = on_wait
        self.timebase = timebase or REAL_TIME

    def open(self, request: Any) -> Call:
        """Begin a call."""
        return Call(request, self.policy, self.library, self.timebase, self.on_wait)


class SyncDriver(Driver):
    """Runs calls on the caller's thread."""

    def handle(self, request: Any) -> Any:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands.
            Exception: whatever the inner transport raised last.
        """
        call = self.open(request)
        try:
            response = self._send(call)
        except self.library.failures as error:
            return self._resume(call, First(error=error))
        return self._resume(call, First(response)) if call.is_refusal(response) else response

    def _send(self, call: Call) -> Any:
        response = self.inner.handle_request(call.begin_attempt())
        call.answer_began()
        return response

    def _resume(self, call: Call, first: First) -> Any:
        retrying = tenacity.Retrying(
            retry=lambda state: self._should_resend(call, state),
            wait=lambda state: call.upcoming_s(),
            sleep=lambda seconds: self._pause(call, seconds),
            reraise=True,
        )
        return call.ended(retrying(lambda: first.take() if first.pending else self._send(call)))

    def _should_resend(self, call: Call, state: tenacity.RetryCallState) -> bool:
        error, response = _outcome(state)
        if error is not None:
            return call.judge_failure(error)
        if not call.is_refusal(response):
            return call.accept()
        return call.judge_answer(
            response, peek(call.request, response, self.library, self.timebase.monotonic)
        )

    def _pause(self, call: Call, seconds: float) -> None:
        call.waited_s += seconds
        self.timebase.sleep(seconds)


class AsyncDriver(Driver):
    """Runs calls on an event loop; cancellation ends an attempt or a wait at once."""

    async def handle(self, request: Any) -> Any:
        """Send `request` until its outcome can be delivered.

        Raises:
            RateLimited: the refusal stands.
            Exception: whatever the inner transport raised last.
        """
        call = self.open(request)
        try:
            response = await self._send(call)
        except self.library.failures as error:
            return await self._resume(call, First(error=error))
        return await self._resume(call, First(response)) if call.is_refusal(response) else response

    async def _send(self, call: Call) -> Any:
        response = await self.inner.handle_async_request(call.begin_attempt())
        call.answer_began()
        return response

    async def _resume(self, call: Call, first: First) -> Any:
        async def attempt() -> Any:
            return first.take() if first.pending else await self._send(call)

        async def pause(seconds: float) -> None:
            await self._pause(call, seconds)

        async def should_resend(state: tenacity.RetryCallState) -> bool:
            return await self._should_resend(call, state)

        retrying = tenacity.AsyncRetrying(
            retry=should_resend, wait=lambda state: call.upcoming_s(), sleep=pause, reraise=True
        )
        return call.ended(await retrying(attempt))

    async def _should_resend(self, call: Call, state: tenacity.RetryCallState) -> bool:
        error, response = _outcome(state)
        if error is not None:
            return call.judge_failure(error)
        if not call.is_refusal(response):
            return call.accept()
        content = await peek_async(call.request, response, self.library, self.timebase.monotonic)
        return call.judge_answer(response, content)

    async def _pause(self, call: Call, seconds: float) -> None:
        call.waited_s += seconds
        await self.timebase.sleep_async(seconds)


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


def _outcome(state: tenacity.RetryCallState) -> tuple[BaseException | None, Any]:
    outcome = state.outcome
    if outcome is None:
        raise AssertionError("tenacity asks only about attempts that have ended")
    error = outcome.exception()
    return error, None if error is not None else outcome.result()
