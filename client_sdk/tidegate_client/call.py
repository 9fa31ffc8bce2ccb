"""One call of the caller, from its first attempt to its answer, without any I/O.

Law: the sync and the async driver differ in how they send, read and sleep, and in nothing else; whatever a
call knows or decides is here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from .core.advice import Advice
from .core.decision import (
    Answered,
    Decision,
    Deliver,
    Failed,
    GiveUp,
    Outcome,
    Progress,
    Resend,
    Why,
    cooldown,
    decide,
    is_refusal,
)
from .fields import advice_from, allowance_from, refusal_from
from .identity import headers_sent, origin_key, part_key, part_keys
from .options import current_options
from .origins import Turn
from .redirects import follow_at, note_redirect
from .replay import can_replay
from .setup import Setup
from .spent import Spent, continued, remember, target_of
from .stamp import Timeouts, counted_by_sdk, forget_number, key, stamp
from .streams import counted

_ids = itertools.count(1)
_DELIVER = Deliver()


class Call:
    """The state of one call. Not safe for concurrent use; a call belongs to one task or thread."""

    def __init__(self, request: Any, setup: Setup) -> None:
        options = current_options()
        self.request = request
        self.setup = setup
        self.policy = (
            dataclasses.replace(setup.policy, **options.changes) if options.changes else setup.policy
        )
        self.on_wait = options.on_wait or setup.on_wait
        self.call_id = next(_ids)
        self.decision: Decision = _DELIVER
        self.answered: Answered | None = None
        self.last_response: Any = None
        sent = headers_sent(request)
        sdk_count = counted_by_sdk(sent)
        spent = continued(request, sdk_count)
        self.attempt = max(spent.attempts if spent else 0, sdk_count or 0)
        self.waited_s = spent.waited_s if spent else 0.0
        self.started = spent.started if spent else setup.timebase.monotonic()
        self._spent = spent
        self._sdk_numbers = sdk_count is not None
        former = spent.key if spent else None
        forget_number(request, sent)
        self._key = key(request, sent, former, setup.timebase.token) if self.policy.announce else None
        self._timeouts = Timeouts(request, self._left_s) if self.policy.deadline_s is not None else None
        self.not_before = follow_at(request)
        self.stream_broke = False
        self._arrived_at = 0.0
        origin = setup.board.origin(origin_key(request, sent), request, self.policy)
        self.turn = Turn(origin, self.call_id, math.inf, lambda: part_keys(request))

    @property
    def left_s(self) -> float | None:
        """Seconds until the caller's deadline; None without one."""
        return None if self.policy.deadline_s is None else self._left_s()

    def _left_s(self) -> float:
        return self.started + (self.policy.deadline_s or 0.0) - self.setup.timebase.monotonic()

    @property
    def reason(self) -> str:
        """Why the call waits, in the server's word where it gave one."""
        if isinstance(self.decision, Resend):
            return self.decision.reason
        return self.answered.refusal.reason if self.answered else ""

    def leave(self) -> None:
        """End an attempt that says nothing about the server, or stop waiting. Harmless when repeated."""
        timebase = self.setup.timebase
        self.setup.board.leave(self.turn, timebase.monotonic(), timebase.uniform)

    def room_s(self, now: float) -> float:
        """Seconds the call may still wait from `now` on."""
        left_s = math.inf if self.policy.deadline_s is None else self.started + self.policy.deadline_s - now
        return min(self.policy.wait_budget_s - self.waited_s, left_s)

    def goes_at_once(self) -> bool:
        """Whether the first attempt may be sent without waiting for anything."""
        if self._spent is not None or self.not_before:
            return False
        return self.setup.board.goes_at_once(self.turn, self.started)

    def check_spent(self) -> None:
        """Refuse an SDK's further try of a call whose attempts are used up: raises what the last one failed
        with.
        """
        spent = self._spent
        if spent is not None and spent.error is not None and self.attempt >= self.policy.max_attempts:
            remember(spent)
            raise spent.error

    @property
    def is_plain(self) -> bool:
        """Whether an attempt needs nothing but to be sent: no deadline cuts it and no stream is watched."""
        return self._timeouts is None and not self.policy.retry_streams

    def begin_attempt(self) -> Any:
        """Count an attempt, stamp the request for it and return it."""
        self.attempt += 1
        left_s = self.left_s
        if self.policy.announce:
            stamp(self.request, self.attempt, left_s, sdk_numbers=self._sdk_numbers)
        if self._timeouts is not None:
            self._timeouts.cap()
        return self.request

    def arrived(self) -> None:
        """An answer has come. A wait it names counts from here, not from when its body has been read."""
        self._arrived_at = self.setup.timebase.monotonic()

    def watches(self, response: Any) -> bool:
        """Whether the call may still be sent again while the answer's stream has generated nothing."""
        if not self.policy.retry_streams or response.status_code != 200 or self.setup.library.in_memory:
            return False
        headers = response.headers
        is_events = headers.get("content-type", "").lower().startswith("text/event-stream")
        watched = is_events and "content-encoding" not in headers and can_replay(self.request)
        if watched and self._timeouts is not None:
            self._timeouts.give_back()  # the library keeps them for the whole body
        return watched

    def check_deadline(self) -> None:
        """Raises the library's error for it when the deadline has passed."""
        left_s = self.left_s
        if left_s is not None and left_s <= 0:
            message = f"no answer within deadline_s={self.policy.deadline_s:g}"
            raise self.setup.library.overdue(message, self.request)

    def answer_began(self, response: Any) -> bool:
        """Note an answer; True when it is a refusal and must be judged."""
        if self._timeouts is not None:
            self._timeouts.give_back()
        if is_refusal(response.status_code, self.policy):
            return True
        timebase = self.setup.timebase
        now = self._arrived_at
        self.setup.board.let_in(self.turn, now, timebase.uniform)
        if "ratelimit" in response.headers:
            self._heed_nothing_left(advice_from(response.headers.multi_items(), timebase.wall()), now)
        if 300 <= response.status_code < 400:
            note_redirect(self.request, response, now, self.policy, timebase)
        if self.setup.library.in_memory or response.is_closed:
            self.finish()
        elif self.policy.concurrency is not None:
            response.stream = counted(response.stream, self.setup.library, self.finish)
        return False

    def finish(self) -> None:
        """The answer's body has ended."""
        timebase = self.setup.timebase
        self.setup.board.finish(self.turn, timebase.monotonic(), timebase.uniform)

    def _heed_nothing_left(self, advice: Advice, now: float) -> None:
        if advice.nothing_left_s is not None:
            until = now + min(advice.nothing_left_s, self.policy.max_cooldown_s)
            uniform = self.setup.timebase.uniform
            self.setup.board.hold(self.turn.origin, now, until, self.policy.jitter_base_s, uniform)

    def accept(self) -> bool:
        """An answer that is no refusal: False, it is delivered."""
        self.decision = _DELIVER
        return False

    def judge_answer(self, response: Any, content: bytes) -> bool:
        """Decide about a refusal whose body (as far as it was read) is `content`; True to resend."""
        headers, wall_now = response.headers.multi_items(), self.setup.timebase.wall()
        advice = advice_from(headers, wall_now)
        allowance = allowance_from(headers, advice.wait_s, wall_now)
        self.answered = Answered(response.status_code, advice, refusal_from(content), allowance)
        self.last_response = response
        return self._decide(self.answered)

    def judge_failure(self, error: BaseException) -> bool:
        """Decide about an attempt that failed before its answer began; True to resend."""
        kind = "other"
        if self.stream_broke:
            kind, self.stream_broke = "stream", False
        elif isinstance(error, self.setup.library.connect_errors):
            kind = "connect"
        elif isinstance(error, self.setup.library.read_errors):
            kind = "read"
        resend = self._decide(Failed(kind))  # type: ignore[arg-type]
        if not resend and self._sdk_numbers:
            target = target_of(self.request)
            remember(Spent(target, self.attempt, self.waited_s, self.started, self._key, error))
        return resend

    @property
    def upcoming_s(self) -> float:
        """Seconds until the next attempt may go at the earliest; the lane may take longer."""
        return max(0.0, self.not_before - self.setup.timebase.monotonic())

    def _decide(self, outcome: Outcome) -> bool:
        left_s = self.left_s
        progress = Progress(
            self.attempt,
            self.waited_s,
            math.inf if left_s is None else left_s,
            self.policy.may_repeat(self.request.method),
            can_replay(self.request),
        )
        self.decision = decide(outcome, progress, self.policy)
        if isinstance(self.decision, Resend) and not self._afford(self.decision):
            self.decision = GiveUp(Why.RETRY_BUDGET) if isinstance(outcome, Answered) else Deliver()
        self._tell_board(outcome)
        return isinstance(self.decision, Resend)

    def _afford(self, resend: Resend) -> bool:
        return resend.asked_for or self.setup.board.spend(self.turn.origin)

    def _tell_board(self, outcome: Outcome) -> None:
        timebase = self.setup.timebase
        draw = timebase.uniform
        silence = cooldown(outcome, self.policy) if isinstance(outcome, Answered) else None
        since = self._arrived_at if isinstance(outcome, Answered) else timebase.monotonic()
        if silence is None or silence.scope == "request":
            self.leave()
        else:
            part = part_key(self.request, silence.scope)
            self.setup.board.refused(self.turn, part, silence, since, draw, self.reason)
        self.not_before = 0.0
        if isinstance(self.decision, Resend):
            self.turn.appointed = self.decision.appointed
            if silence is None or silence.scope == "request" or self.decision.appointed:
                self.not_before = since + self.decision.floor_s + self.decision.range_s * draw()
            elif self.decision.floor_s > silence.floor_s:
                self.not_before = since + self.decision.floor_s
