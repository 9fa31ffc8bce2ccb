"""What becomes of a call whose attempt was refused or failed.

Law: the core decides; here its decision is joined with what the process shares: the retry budget, and the
silence that a refusal asks of everybody it covers. A call that succeeds never comes here.
"""

from __future__ import annotations

import math
import ssl
from typing import Any

from .call import Call
from .core.decision import (
    Cooldown,
    Deliver,
    Failed,
    GiveUp,
    Outcome,
    Progress,
    Resend,
    Why,
    cooldown,
    decide,
)
from .fields import answered_from
from .identity import part_key
from .replay import can_replay

_MOST_CAUSES = 16


def judge_answer(call: Call, response: Any, content: bytes) -> bool:
    """Decide about a refusal whose body (as far as it was read) is `content`; True to resend."""
    headers, wall_now = response.headers.multi_items(), call.setup.timebase.wall()
    answered = answered_from(response.status_code, headers, content, wall_now)
    call.answered, call.last_response = answered, response
    resend = _decide(call, answered, GiveUp(Why.RETRY_BUDGET))
    if resend is None:
        call.remember_spent()
    silence = cooldown(answered, call.policy)
    if silence is None or silence.scope == "request":
        call.leave()
        silence = None
    else:
        _impose(call, silence, resend.reason if resend is not None else answered.refusal.reason)
    return _plan(call, resend, call.arrived_at, silence)


def judge_failure(call: Call, error: BaseException) -> bool:
    """Decide about an attempt that failed before its answer began; True to resend."""
    failed = _failure(call, error)
    resend = _decide(call, failed, Deliver())
    call.leave()
    if resend is None:
        call.remember_spent(error)
    return _plan(call, resend, call.setup.timebase.monotonic(), None)


def _failure(call: Call, error: BaseException) -> Failed:
    library = call.setup.library
    if call.stream_broke:
        call.stream_broke = False
        return Failed("stream")
    if isinstance(error, library.connect_errors):
        return Failed("other" if _is_of_a_stranger(error) else "connect")
    return Failed("read" if isinstance(error, library.read_errors) else "other")


def _is_of_a_stranger(error: BaseException) -> bool:
    """Whether the connection failed because the server's certificate is not the one of that name, or is not
    trusted: time does not mend that.
    """
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None or isinstance(cause, ssl.SSLCertVerificationError):
            break
        cause = cause.__cause__ or cause.__context__
    return isinstance(cause, ssl.SSLCertVerificationError)


def _decide(call: Call, outcome: Outcome, unaffordable: GiveUp | Deliver) -> Resend | None:
    left_s = call.left_s
    progress = Progress(
        call.attempt,
        call.waited_s,
        math.inf if left_s is None else left_s,
        call.policy.may_repeat(call.request.method),
        can_replay(call.request),
    )
    decision = decide(outcome, progress, call.policy)
    if isinstance(decision, Resend) and not (decision.asked_for or call.setup.board.spend(call.origin)):
        decision = unaffordable
    call.decision = decision
    return decision if isinstance(decision, Resend) else None


def _impose(call: Call, silence: Cooldown, reason: str) -> None:
    part = part_key(call.request, silence.scope)
    uniform = call.setup.timebase.uniform
    call.setup.board.refused(call.turn, part, silence, call.arrived_at, uniform, reason)


def _plan(call: Call, resend: Resend | None, since: float, silence: Cooldown | None) -> bool:
    """Set the instant before which the call itself does not go; the `silence` imposed on all comes on top."""
    call.not_before = 0.0
    if resend is None:
        return False
    call.turn.appointed = resend.appointed
    if silence is None or resend.appointed:
        call.not_before = since + resend.floor_s + resend.range_s * call.setup.timebase.uniform()
    elif resend.floor_s > silence.floor_s:
        call.not_before = since + resend.floor_s
    return True
