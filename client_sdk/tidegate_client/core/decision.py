"""What to do about the outcome of an attempt.

Law: only what is safe. A refusal before work (429; 503 and 529 when they say when to come back) and a
connection that never came about may be followed by another attempt of any request; everything else only by
one of a request that may be carried out twice. A wait that does not fit the caller's budget ends the call at
once.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal

from .advice import NO_ADVICE, Advice
from .jitter import growing_s
from .limits import Allowance
from .policy import RetryPolicy
from .refusal import NO_REFUSAL, Refusal

_ALWAYS_REFUSED = 429
_REFUSED_WITH_ADVICE = frozenset({503, 529})
_LOAD = _REFUSED_WITH_ADVICE | {_ALWAYS_REFUSED}
_OF_AN_APPOINTMENT = 0.1
"""Jitter of a wait given to one request alone, over the wait: such a server spreads its callers out
itself.
"""
_ROOM_FOR_JITTER = 0.1
"""Share of the jitter's range that must fit the budget beside the floor: without room all callers with the
same budget would return in the same instant, at its end."""


class Why(str, enum.Enum):
    """Why a refusal was not followed by another attempt."""

    OVER_BUDGET = "over_budget"  # the wait does not fit wait_budget_s or deadline_s
    ATTEMPTS = "attempts"  # max_attempts are used up
    QUOTA = "quota"  # the allowance is used up: not a matter of waiting
    RETRY_BUDGET = "retry_budget"  # the process has retried too much lately
    COOLING_DOWN = "cooling_down"  # not sent: its turn would not have come within this caller's budget
    THROTTLED = "throttled"  # not sent: the origin has been refusing most calls

    def __str__(self) -> str:
        """The value: the same in every version of Python, in a log line or an f-string."""
        return str(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """An answer began: its status, what its headers advise, what its body says, what the server allows."""

    status: int
    advice: Advice = NO_ADVICE
    refusal: Refusal = NO_REFUSAL
    allowance: Allowance | None = None

    @property
    def wait_s(self) -> float | None:
        """The wait that the answer names, in seconds: in its headers, or else in its body."""
        return self.refusal.wait_s if self.advice.wait_s is None else self.advice.wait_s

    @property
    def source(self) -> str:
        """Where it names that wait: the header, `body`, `message` (the body's sentence for people), or
        `none`.
        """
        if self.advice.wait_s is not None or self.refusal.wait_s is None:
            return self.advice.source
        return "message" if self.refusal.in_words else "body"

    @property
    def says_when(self) -> bool:
        """Whether it asks for another attempt, as a server does that has refused before work."""
        named = self.wait_s is not None and self.source != "message"
        return named or self.advice.should_retry is True


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """No answer began. `connect`: nothing was sent; `read`: the request may have been carried out; `stream`:
    its work had begun, but nothing had been generated.
    """

    kind: Literal["connect", "read", "stream", "other"]


Outcome = Answered | Failed


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """Where a call stands when an attempt has ended.

    Attributes:
        attempt: number of that attempt, from 1.
        waited_s: seconds spent waiting so far.
        left_s: seconds until the caller's deadline, infinity without one.
        may_repeat: the request may be carried out twice.
        replayable: its body can be sent again.
    """

    attempt: int
    waited_s: float
    left_s: float
    may_repeat: bool
    replayable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the outcome to the caller as it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class GiveUp:
    """The refusal stands: tell the caller why and, when known, the wait the server asked for (seconds)."""

    why: Why
    wait_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Resend:
    """Send again, no earlier than `floor_s` from now and spread over `range_s` more (seconds).

    Attributes:
        room_s: the longest wait that still fits the caller's budget.
        asked_for: the server refused before work, or asked for the retry; others are charged to the budget.
        appointed: the time is this request's own; it goes then, whatever the others wait for.
        reason, source, scope: for the event that tells the caller why it waits.
    """

    floor_s: float
    range_s: float
    asked_for: bool
    appointed: bool
    reason: str
    source: str
    scope: str


@dataclasses.dataclass(frozen=True, slots=True)
class Cooldown:
    """The silence that a refusal imposes on all calls it covers, the range of the jitter after it
    (seconds), and what the server says it allows from then on.
    """

    floor_s: float
    jitter_base_s: float
    jitter_cap_s: float
    scope: str
    allowance: Allowance | None = None


Decision = Deliver | GiveUp | Resend

_DELIVER = Deliver()


def is_refusal(status: int, policy: RetryPolicy) -> bool:
    """Whether an answer with this status is worth judging: a cheap test for the path of success."""
    return status >= 400 and (
        status == _ALWAYS_REFUSED or status in _REFUSED_WITH_ADVICE or status in policy.retry_statuses
    )


def decide(outcome: Outcome, progress: Progress, policy: RetryPolicy) -> Decision:
    """Deliver, give up or resend; pure."""
    if isinstance(outcome, Failed):
        return (
            _resend(outcome, progress, policy) if _safe_after_failure(outcome, progress, policy) else _DELIVER
        )
    if outcome.refusal.quota and outcome.status == _ALWAYS_REFUSED:
        return GiveUp(Why.QUOTA, outcome.wait_s)
    if outcome.advice.should_retry is False or not _safe_after_answer(outcome, progress, policy):
        return _DELIVER
    return _resend(outcome, progress, policy)


def _safe_after_failure(outcome: Failed, progress: Progress, policy: RetryPolicy) -> bool:
    if not progress.replayable:
        return False
    if outcome.kind == "connect":
        return policy.retry_connect_errors
    if outcome.kind == "stream":
        return policy.retry_streams
    return outcome.kind == "read" and policy.retry_read_errors and progress.may_repeat


def _safe_after_answer(outcome: Answered, progress: Progress, policy: RetryPolicy) -> bool:
    if not progress.replayable:
        return False
    if outcome.status == _ALWAYS_REFUSED:
        return True
    if outcome.status in _REFUSED_WITH_ADVICE and outcome.says_when:
        return True
    return outcome.status in policy.retry_statuses and progress.may_repeat


def cooldown(outcome: Answered, policy: RetryPolicy) -> Cooldown | None:
    """The silence that an answer imposes on its scope, whatever becomes of the call; None when it is no such
    refusal.
    """
    load = outcome.status == _ALWAYS_REFUSED or outcome.says_when
    if (
        not load
        or outcome.status not in _LOAD
        or outcome.refusal.quota
        or outcome.advice.should_retry is False
    ):
        return None
    named_s = outcome.wait_s
    scope, allowance = outcome.refusal.scope, outcome.allowance
    if named_s is None:
        return Cooldown(policy.min_wait_s, policy.backoff_base_s, policy.backoff_cap_s, scope, allowance)
    floor_s = min(max(named_s, policy.min_wait_s), policy.max_cooldown_s)
    return Cooldown(floor_s, policy.jitter_base_s, policy.jitter_cap_s, scope, allowance)


def _resend(outcome: Outcome, progress: Progress, policy: RetryPolicy) -> Decision:
    named_s = outcome.wait_s if isinstance(outcome, Answered) else None
    if progress.attempt >= policy.max_attempts:
        return GiveUp(Why.ATTEMPTS, named_s)
    if named_s is None:
        floor_s = policy.min_wait_s
        range_s = growing_s(policy.backoff_base_s, policy.backoff_cap_s, progress.attempt)
    else:
        floor_s = max(named_s, policy.min_wait_s)
        range_s = growing_s(policy.jitter_base_s, policy.jitter_cap_s, progress.attempt)
    if isinstance(outcome, Answered) and outcome.refusal.appointed and named_s is not None:
        range_s = min(
            range_s,
            max(_OF_AN_APPOINTMENT * floor_s, growing_s(policy.min_wait_s, range_s, progress.attempt)),
        )
    room_s = min(policy.wait_budget_s - progress.waited_s, progress.left_s)
    if floor_s + _ROOM_FOR_JITTER * range_s > room_s:
        return GiveUp(Why.OVER_BUDGET, named_s)
    return _described(outcome, floor_s, min(range_s, room_s - floor_s), named_s is not None)


def _described(outcome: Outcome, floor_s: float, range_s: float, named: bool) -> Resend:
    if isinstance(outcome, Failed):
        return Resend(floor_s, range_s, False, False, f"{outcome.kind}_error", "none", "request")
    refusal = outcome.refusal
    asked_for = outcome.says_when or outcome.status == _ALWAYS_REFUSED
    reason = refusal.reason or f"http_{outcome.status}"
    appointed = named and refusal.appointed
    return Resend(floor_s, range_s, asked_for, appointed, reason, outcome.source, refusal.scope)
