"""One call of the caller, from its first attempt to its answer, without any I/O.

Law: the sync and the async driver differ in how they send, read and sleep, and in nothing else; whatever a
call knows or decides is here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import uuid
from typing import Any

from .core.advice import NO_ADVICE
from .core.decision import (
    Answered,
    Decision,
    Deliver,
    Failed,
    GiveUp,
    Outcome,
    Progress,
    Resend,
    decide,
    is_refusal,
)
from .core.events import WaitEvent
from .core.policy import RetryPolicy
from .errors import RateLimited
from .fields import advice_from, refusal_from
from .library import Library
from .options import current_options
from .replay import can_replay
from .timebase import Timebase
from .waits import OnWait, tell

_ids = itertools.count(1)


class Call:
    """The state of one call. Not safe for concurrent use; a call belongs to one task or thread."""

    def __init__(
        self, request: Any, policy: RetryPolicy, library: Library, timebase: Timebase, on_wait: OnWait | None
    ) -> None:
        options = current_options()
        self.request = request
        self.policy = dataclasses.replace(policy, **options.changes) if options.changes else policy
        self.library = library
        self.timebase = timebase
        self.on_wait = options.on_wait or on_wait
        self.call_id = next(_ids)
        self.started = timebase.monotonic()
        self.waited_s = 0.0
        self.attempt = 0
        self.decision: Decision = Deliver()
        self.answered: Answered | None = None
        self._timeouts: dict[str, Any] | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the caller's deadline; infinity without one."""
        deadline_s = self.policy.deadline_s
        return math.inf if deadline_s is None else self.started + deadline_s - self.timebase.monotonic()

    def begin_attempt(self) -> Any:
        """Count an attempt, stamp the request for it and return it."""
        self.attempt += 1
        if self.policy.announce:
            self._stamp(self.request.headers)
        if self.policy.deadline_s is not None:
            self._cap_timeouts()
        return self.request

    def answer_began(self) -> None:
        """Give the caller's own time-outs back: from here on the answer's body is the caller's."""
        if self._timeouts is not None:
            self.request.extensions["timeout"].update(self._timeouts)

    def is_refusal(self, response: Any) -> bool:
        """Whether this answer must be judged before the caller may have it."""
        return is_refusal(response.status_code, self.policy)

    def accept(self) -> bool:
        """An answer that is no refusal: False, it is delivered."""
        self.decision = Deliver()
        return False

    def judge_answer(self, response: Any, content: bytes) -> bool:
        """Decide about an answer whose body (as far as it was read) is `content`; True to resend."""
        advice = advice_from(response.headers.multi_items(), self.timebase.wall())
        self.answered = Answered(response.status_code, advice, refusal_from(content))
        return self._decide(self.answered)

    def judge_failure(self, error: BaseException) -> bool:
        """Decide about an attempt that failed before its answer began; True to resend."""
        if isinstance(error, self.library.connect_errors):
            return self._decide(Failed("connect"))
        return self._decide(Failed("read" if isinstance(error, self.library.read_errors) else "other"))

    def upcoming_s(self) -> float:
        """The wait before the next attempt, in seconds, drawn now; tells the listener."""
        resend = self.decision
        if not isinstance(resend, Resend):
            raise AssertionError(f"no wait follows {resend}")
        wait_s = resend.floor_s + resend.range_s * self.timebase.uniform()
        self.tell_wait(wait_s, resend.reason, resend.source, resend.scope)
        return wait_s

    def tell_wait(self, wait_s: float, reason: str, source: str, scope: str) -> None:
        """Tell the listener about a wait that starts now."""
        if self.on_wait is None:
            return
        until, wall_until = self.timebase.monotonic() + wait_s, self.timebase.wall() + wait_s
        url = self.request.url
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        attempts = self.policy.max_attempts
        event = WaitEvent(
            reason, wait_s, until, wall_until, self.attempt + 1, attempts, origin, scope, source, self.call_id
        )
        tell(self.on_wait, event)

    def ended(self, response: Any) -> Any:
        """The answer as the caller gets it, after tenacity has let it through.

        Raises:
            RateLimited: a refusal stands and this caller gets errors.
        """
        if not isinstance(self.decision, GiveUp):
            return response
        response.request = self.request
        error = self._error(response, self.decision)
        if self._wants_response():
            # The SDK on top would spend its own attempts on a refusal we have already judged.
            response.headers["x-should-retry"] = "false"
            response.extensions["tidegate"] = error
            return response
        raise error

    def _wants_response(self) -> bool:
        chosen = self.policy.on_give_up
        return chosen == "response" or (chosen == "auto" and "x-stainless-lang" in self.request.headers)

    def _error(self, response: Any, given_up: GiveUp) -> RateLimited:
        answered = self.answered or Answered(response.status_code, NO_ADVICE)
        error: RateLimited = self.library.rate_limited(
            why=given_up.why,
            retry_after=given_up.wait_s,
            wall_now=self.timebase.wall(),
            reason=answered.refusal.reason,
            scope=answered.refusal.scope,
            message=answered.refusal.message,
            response=response,
            attempts=self.attempt,
        )
        error.request = self.request  # type: ignore[attr-defined]  # an HTTPStatusError of the library has it
        return error

    def _decide(self, outcome: Outcome) -> bool:
        progress = Progress(
            self.attempt,
            self.waited_s,
            self.left_s,
            self.policy.may_repeat(self.request.method),
            can_replay(self.request),
        )
        self.decision = decide(outcome, progress, self.policy)
        return isinstance(self.decision, Resend)

    def _stamp(self, headers: Any) -> None:
        if "x-stainless-retry-count" in headers:
            headers["x-stainless-retry-count"] = str(self.attempt - 1)
        else:
            headers["tidegate-attempt"] = str(self.attempt)
        if (
            self.attempt == 1
            and self.request.method in ("POST", "PATCH")
            and "idempotency-key" not in headers
        ):
            headers["idempotency-key"] = f'"{uuid.uuid4()}"'
        if self.policy.deadline_s is not None:
            headers["prefer"] = f"wait={max(1, int(self.left_s))}"

    def _cap_timeouts(self) -> None:
        extensions = self.request.extensions
        if self._timeouts is None:
            self._timeouts = dict(extensions.get("timeout", {}))
        left_s = max(self.left_s, 0.001)
        capped = {
            name: left_s if self._timeouts.get(name) is None else min(left_s, self._timeouts[name])
            for name in ("connect", "read", "write", "pool")
        }
        self.request.extensions = {**extensions, "timeout": capped}
