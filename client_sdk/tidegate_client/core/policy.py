"""What a caller is willing to do: the one options object of the client.

Law: frozen and checked at construction; an error names the field, the value and the way out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Literal

from .concurrency import AdaptiveConcurrency

OnGiveUp = Literal["auto", "raise", "response"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Idempotent by RFC 9110, section 9.2.2."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how long and when a refused call is sent again.

    Attributes:
        max_attempts: attempts per call, the first included.
        wait_budget_s: seconds one call may spend waiting, over all its waits. A server that asks for more is
            an error at once, with the time it asked for.
        deadline_s: seconds within which the answer must have begun: waits, and every phase of every attempt;
            None for no limit. An attempt in flight is cut by it, and the server is told (`Prefer: wait`).
        jitter_base_s, jitter_cap_s: range of the jitter added to a server-given wait; it doubles with each
            attempt.
        backoff_base_s, backoff_cap_s: range of the full jitter used when the server gave no time.
        min_wait_s: the least wait before any attempt after the first.
        retry_connect_errors: resend when no connection came about (nothing was sent, so every method is
            safe).
        retry_read_errors: resend idempotent requests when the connection broke before the answer began.
        retry_streams: resend any request whose event stream broke, or reported a refusal, before it had
            generated anything. Its work may be done, and billed, twice.
        retry_statuses: further statuses after which idempotent requests are sent again.
        idempotent: the caller vouches that every request may be carried out twice.
        on_give_up: what the caller gets when a refusal stands: `raise` RateLimited, the `response` itself, or
            `auto`: raise, except to the SDKs that turn answers into errors of their own (OpenAI, Anthropic
            and kin).
        announce: send `Idempotency-Key`, the attempt number and `Prefer: wait`.
        max_cooldown_s: the longest silence that one refusal imposes on the other calls of the process.
        slow_start: attempts with an unknown outcome that one origin may hold just after it refused.
        concurrency: learn how many calls an origin bears at once; None for no limit.
        throttle_k: turn calls down unsent while an origin refuses most of them, by this factor; None never
            does.

    Raises (at construction):
        ValueError: a value makes no sense; the message names the field, the value and the way out.
    """

    max_attempts: int = 10
    wait_budget_s: float = 120.0
    deadline_s: float | None = None
    jitter_base_s: float = 1.0
    jitter_cap_s: float = 16.0
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    min_wait_s: float = 0.05
    retry_connect_errors: bool = True
    retry_read_errors: bool = False
    retry_streams: bool = False
    retry_statuses: AbstractSet[int] = frozenset()
    idempotent: bool = False
    on_give_up: OnGiveUp = "auto"
    announce: bool = True
    max_cooldown_s: float = 600.0
    slow_start: int = 8
    concurrency: AdaptiveConcurrency | None = None
    throttle_k: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_attempts", "slow_start"):
            _check(
                _whole(getattr(self, name), 1), name, getattr(self, name), "give a whole number, at least 1."
            )
        for name in ("jitter_base_s", "jitter_cap_s", "backoff_base_s", "backoff_cap_s", "min_wait_s"):
            _check(_positive(getattr(self, name)), name, getattr(self, name), "give seconds, more than 0.")
        for name in ("wait_budget_s", "max_cooldown_s"):
            value = getattr(self, name)
            _check(value == 0 or _positive(value), name, value, "give seconds, 0 or more.")
        deadline_s = self.deadline_s
        _check(
            deadline_s is None or _positive(deadline_s),
            "deadline_s",
            deadline_s,
            "give seconds, or None for no limit.",
        )
        _check(
            self.on_give_up in ("auto", "raise", "response"),
            "on_give_up",
            self.on_give_up,
            "use auto, raise or response.",
        )
        throttle_k = self.throttle_k
        _check(
            throttle_k is None or (_positive(throttle_k) and throttle_k >= 1),
            "throttle_k",
            throttle_k,
            "give a factor, 1 or more (2 is usual), or None.",
        )
        concurrency = self.concurrency
        _check(
            concurrency is None or isinstance(concurrency, AdaptiveConcurrency),
            "concurrency",
            concurrency,
            "give AdaptiveConcurrency(most=...), or None for no limit.",
        )
        statuses: object = self.retry_statuses
        _check(
            isinstance(statuses, Collection)
            and all(_whole(status, 400) and status < 600 for status in statuses),
            "retry_statuses",
            statuses,
            "give a set of error statuses, 400 to 599.",
        )
        object.__setattr__(self, "retry_statuses", frozenset(self.retry_statuses))

    def may_repeat(self, method: str) -> bool:
        """Whether a request with this method may be carried out twice without harm."""
        return self.idempotent or method.upper() in SAFE_METHODS


def _check(holds: bool, field: str, value: object, way_out: str) -> None:
    if not holds:
        raise ValueError(f"RetryPolicy.{field} is {value!r}: {way_out}")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _positive(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
