"""One call of the caller, from its first attempt to its answer, without any I/O.

Law: the sync and the async driver differ in how they send, read and sleep, and in nothing else; whatever a
call knows is here, and what it decides about an attempt that did not succeed in `judging`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from .core.advice import Advice
from .core.decision import Answered, Decision, Deliver, is_refusal
from .fields import advice_from
from .identity import Sent, headers_sent, origin_key
from .options import current_options
from .origins import Turn, goes_at_once
from .redirects import follow_at, note_redirect
from .replay import can_replay
from .setup import Setup
from .spent import Spent, continued, remember, target_of
from .stamp import Timeouts, counted_by_sdk, forget_number, key_for, stamp
from .streams import counted

_ids = itertools.count(1)
_DELIVER = Deliver()


class Call:
    """The state of one call. Not safe for concurrent use; a call belongs to one task or thread."""

    # What almost every call leaves as it is stands here: one that succeeds pays for each value set.
    decision: Decision = _DELIVER
    answered: Answered | None = None
    last_response: Any = None
    attempt = 0
    waited_s = 0.0
    is_plain = True
    """Whether an attempt needs nothing but to be sent: no deadline cuts it and no stream is watched."""
    stream_broke = False
    arrived_at = 0.0
    is_closed = False
    """Whether the client was closed while the call waited."""
    key: str | None = None
    sdk_numbers = False
    _spent: Spent | None = None
    _turn: Turn | None = None
    _timeouts: Timeouts | None = None

    def __init__(self, request: Any, setup: Setup) -> None:
        timebase, options = setup.timebase, current_options()
        policy = dataclasses.replace(setup.policy, **options.changes) if options.changes else setup.policy
        self.request, self.setup, self.policy = request, setup, policy
        self.on_wait = options.on_wait or setup.on_wait
        self.call_id = next(_ids)
        self.started = timebase.monotonic()
        sent = headers_sent(request)
        if sent:
            self._read(sent)
        self.key = key_for(request, sent, self.key, timebase.token) if policy.announce else None
        if policy.deadline_s is not None:
            self._timeouts = Timeouts(request, self.started + policy.deadline_s, timebase.monotonic)
            self.is_plain = False
        elif policy.retry_streams:
            self.is_plain = False
        self.not_before = follow_at(request)
        self.origin = setup.board.origin(origin_key(request, sent), request, policy)

    def _read(self, sent: Sent) -> None:
        """What an SDK on top, or an earlier call with the same request, left in the headers."""
        forget_number(self.request, sent)
        sdk_count = counted_by_sdk(sent)
        if sdk_count is None:
            return
        self.sdk_numbers, self.attempt = True, sdk_count
        self._spent = spent = continued(self.request, sdk_count)
        if spent is not None:
            self.attempt = max(spent.attempts, sdk_count)
            self.waited_s, self.started, self.key = spent.waited_s, spent.started, spent.key

    @property
    def turn(self) -> Turn:
        """The call's place among the others; made when it is first needed."""
        if self._turn is None:
            self._turn = Turn(self.origin, self.call_id, self.request)
        return self._turn

    @property
    def left_s(self) -> float | None:
        """Seconds until the caller's deadline; None without one."""
        deadline_s = self.policy.deadline_s
        return None if deadline_s is None else self.started + deadline_s - self.setup.timebase.monotonic()

    def leave(self) -> None:
        """End an attempt that says nothing about the server, or stop waiting. Harmless when repeated."""
        timebase = self.setup.timebase
        if self._turn is not None:
            self.setup.board.leave(self._turn, timebase.monotonic(), timebase.uniform)

    def room_s(self, now: float) -> float:
        """Seconds the call may still wait from `now` on."""
        left_s = math.inf if self.policy.deadline_s is None else self.started + self.policy.deadline_s - now
        return min(self.policy.wait_budget_s - self.waited_s, left_s)

    def goes_at_once(self) -> bool:
        """Whether the first attempt may be sent without waiting for anything."""
        return self._spent is None and not self.not_before and goes_at_once(self.origin)

    def check_spent(self) -> None:
        """Refuse an SDK's further try of a call whose attempts are used up: raises what the last one failed
        with.
        """
        spent = self._spent
        if spent is not None and spent.error is not None and self.attempt >= self.policy.max_attempts:
            remember(spent)
            raise spent.error

    def check_closed(self) -> None:
        """Raises RuntimeError, as httpx does, when the client was closed."""
        if self.is_closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")

    def remember_spent(self, error: BaseException | None = None) -> None:
        """Before the caller gets an `error`, or an answer that is one: an SDK on top may try again."""
        if self.sdk_numbers:
            target = target_of(self.request)
            remember(Spent(target, self.attempt, self.waited_s, self.started, self.key, error))

    def begin_attempt(self) -> Any:
        """Count an attempt, stamp the request for it and return it."""
        self.attempt += 1
        if self.attempt > 1 or self._timeouts is not None:
            self._say_more()
        return self.request

    def _say_more(self) -> None:
        left_s = self.left_s
        if self.policy.announce:
            stamp(self.request, self.attempt, left_s, sdk_numbers=self.sdk_numbers)
        if self._timeouts is not None:
            self._timeouts.cap()

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
        timebase, board, turn = self.setup.timebase, self.setup.board, self._turn
        status = response.status_code
        # A wait that it names counts from here, not from when its body has been read.
        self.arrived_at = now = timebase.monotonic()
        if self._timeouts is not None:
            self._timeouts.give_back()
        if status >= 400:
            if is_refusal(status, self.policy):
                return True
            self._end_the_sdks_tries(response)
        if turn is None:
            board.let_in_freely(self.origin, now)
        else:
            board.let_in(turn, now, timebase.uniform)
        if "ratelimit" in response.headers:
            self._heed_nothing_left(advice_from(response.headers.multi_items(), timebase.wall()), now)
        if 300 <= status < 400:
            note_redirect(self.request, response, now, self.policy, timebase)
        if turn is not None and turn.answering:
            self._finish_with(response)
        return False

    def _end_the_sdks_tries(self, response: Any) -> None:
        left_s = self.left_s
        self.remember_spent()
        if self.sdk_numbers and (
            self.attempt >= self.policy.max_attempts or (left_s is not None and left_s <= 0)
        ):
            response.headers["x-should-retry"] = "false"

    def _finish_with(self, response: Any) -> None:
        library = self.setup.library
        if library.in_memory or response.is_closed:
            self.finish()
        else:
            response.stream = counted(response.stream, library, self.finish)

    def finish(self) -> None:
        """The answer's body has ended."""
        timebase = self.setup.timebase
        self.setup.board.finish(self.turn, timebase.monotonic(), timebase.uniform)

    def _heed_nothing_left(self, advice: Advice, now: float) -> None:
        if advice.nothing_left_s is not None:
            until = now + min(advice.nothing_left_s, self.policy.max_cooldown_s)
            uniform = self.setup.timebase.uniform
            self.setup.board.hold(self.origin, now, until, self.policy.jitter_base_s, uniform)

    def accept(self) -> bool:
        """An answer that is no refusal: False, it is delivered."""
        self.decision = _DELIVER
        return False

    @property
    def upcoming_s(self) -> float:
        """Seconds until the next attempt may go at the earliest; the lane may take longer."""
        return max(0.0, self.not_before - self.setup.timebase.monotonic())
