"""The vocabulary of the core: what is asked, and what is answered.

Law of this file: values that do not change, nor can be wrong. What is made for every request is a named
tuple, or, where it has many fields that are read again and again, a class with slots: made in half the time
of a frozen one. All times are seconds on the one monotonic clock that the shell passes in as `now`; all sizes
are tokens unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

Uniform = Callable[[], float]
"""Returns a float in [0, 1); the shell passes `random.random`, a test passes a seeded one."""

Scope = Literal["request", "tenant", "class", "model"]


MOST = 1e12  # of any figure of an `Ask`


class InvalidAsk(ValueError):
    """A figure of an `Ask` is absurd; nothing in the core has changed."""


class Reason(str, Enum):
    """Why a request was refused; the value is the machine-readable code on the wire."""

    RATE_LIMITED = "rate_limited"  # the tenant's requests per second
    TOKEN_RATE_LIMITED = "token_rate_limited"  # the tenant's tokens per second
    QUEUE_FULL = "queue_full"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    WAIT_EXPIRED = "wait_expired"  # waited as long as it may
    WAIT_TOO_LONG = "wait_too_long"  # the estimate already exceeds what it may wait
    DISPLACED = "displaced"  # gave its seat to a higher class or a lighter tenant
    TOO_EARLY = "too_early"  # came back before its slot
    SUPERSEDED = "superseded"  # a later attempt of the same request took over
    KV_BLIND = "kv_blind"  # no signal, and `on_blind` is closed
    ASLEEP = "asleep"  # the engine sleeps
    PROMPT_TOO_LARGE = "prompt_too_large"  # can never fit: permanent
    COST_ABOVE_BURST = "cost_above_burst"  # above the tenant's burst: permanent
    DRAINING = "draining"  # the server is stopping (said by the shell)
    KEYS_UNAVAILABLE = "keys_unavailable"  # the provider of keys cannot be asked (said by the shell)
    GATE_FAULT = "gate_fault"  # the gate itself failed and may not open (said by the shell)


@dataclass(slots=True, kw_only=True)
class Ask:
    """One request at the door, as the shell has understood it. Nobody changes it once it is made.

    Args:
        ticket: unique among the requests now known to the gate; chosen by the shell.
        prompt_tokens: estimate (already by learnt bytes per token).
        prompt_tokens_floor: what the prompt certainly holds at least; only this may refuse for good.
        max_output_tokens: the declared bound per sequence, `None` when none was declared.
        sequences: answers generated in parallel (`n`, `best_of`, or several prompts).
        length_key: what the length of the answer depends on, e.g. (model, tenant, thinking).
        latest_start_at: not to be started after this instant; `None`: the class's maximum wait rules.
        identity: idempotency key, or digest on a declared retry; scoped to the tenant by the core.
        digest: of the body; running work is superseded only where identity and digest are both equal.
        is_keyed: `identity` is a caller's Idempotency-Key (may supersede), not a digest (may not).
        end_user: whom the tenant serves with this request; end users take turns inside the tenant.
        session: conversation under way; goes before the same tenant's new ones, boundedly.
        instance: set where the shell routes, or `#n` where the caller has named a data-parallel rank;
            `None`: the engine's own balancer chooses.
        streams: the answer is streamed, so `progress` will be told; else output is estimated from the
            engine's decode rate.
        deadline_at: instant at which the caller has said it gives up on the whole answer.
        model, ascii_bytes, other_bytes: of the prompt, to learn bytes per token from reported usage;
            zero bytes: nothing is learnt.
    """

    ticket: int
    tenant: str
    priority_class: str
    prompt_tokens: float
    prompt_tokens_floor: int = 1
    max_output_tokens: int | None = None
    sequences: int = 1
    generates: bool = True  # False: embeddings and the like, prompt only
    length_key: Hashable = None
    body_bytes: int = 0
    latest_start_at: float | None = None
    identity: str | None = None
    digest: bytes | None = None
    is_keyed: bool = False
    attempt: int = 1
    session: str | None = None
    end_user: str | None = None
    instance: str | None = None
    streams: bool = True
    deadline_at: float | None = None
    model: str = ""
    ascii_bytes: int = 0
    other_bytes: int = 0

    def __post_init__(self) -> None:
        most, start, deadline = self.max_output_tokens, self.latest_start_at, self.deadline_at
        is_possible = (
            0 <= self.prompt_tokens <= MOST
            and 0 <= self.prompt_tokens_floor <= MOST
            and 1 <= self.sequences <= MOST
            and 0 <= self.body_bytes <= MOST
            and 0 <= self.ascii_bytes <= MOST
            and 0 <= self.other_bytes <= MOST
            and 1 <= self.attempt <= MOST
            and (most is None or 0 <= most <= MOST)
            and (start is None or start == start)
            and (deadline is None or deadline == deadline)
        )
        if not is_possible:
            self._complain()

    def _complain(self) -> None:
        """Say which figure it is."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                raise InvalidAsk(f"{name} is {value!r}, expected a figure between {least} and {MOST:g}.")
        start = self.latest_start_at
        name = "deadline_at" if start is None or start == start else "latest_start_at"
        raise InvalidAsk(f"{name} is NaN, expected an instant on the monotonic clock or None.")


_LEAST = {
    "prompt_tokens": 0,
    "prompt_tokens_floor": 0,
    "sequences": 1,
    "body_bytes": 0,
    "ascii_bytes": 0,
    "other_bytes": 0,
    "attempt": 1,
    "max_output_tokens": 0,
}


class Admit(NamedTuple):
    """May run now; its lease is already charged."""

    ticket: int
    instance: str
    waited_s: float


class Queued(NamedTuple):
    """Waits. `position` counts from 1 within everything that goes before it."""

    ticket: int
    position: int
    estimated_wait_s: float | None
    latest_start_at: float


class Refuse(NamedTuple):
    """May not run. `retry_after_s` is exact (not rounded); `None` means never: a permanent refusal.

    `limit`, `remaining` and `reset_after_s` describe the bound that bit: the quota, or the seats.
    """

    ticket: int
    reason: Reason
    scope: Scope
    retry_after_s: float | None
    limit: float | None = None
    remaining: float = 0
    reset_after_s: float | None = None
    waited_s: float = 0.0
    detail: str = ""  # for permanent refusals: the figures, in English


Decision = Admit | Queued | Refuse


class Ending(Enum):
    """How a lease ended; only a completed one teaches lengths and rates."""

    COMPLETED = "completed"
    FAILED = "failed"  # the app raised or answered an error
    ABANDONED = "abandoned"  # the caller left


COMPLETED = Ending.COMPLETED  # members are looked up slowly before Python 3.12


class Settlement(NamedTuple):
    """What a lease turned out to cost. `None` means not reported; the core then keeps its estimate."""

    ending: Ending
    prompt_tokens: int | None = None
    output_tokens: int | None = None  # all sequences together
    finished_by_length: bool = False  # cut at the declared maximum


class Step(NamedTuple):
    """What one operation of the gate brought about; the shell must act on all of it.

    `decision` answers the `offer` that was made; `grants` and `refusals` are for requests that were
    waiting. `cancelled` are running tickets whose app must be told that its caller has gone
    (superseded). `wake_at` is when `advance` must be called next; `wants_reading` asks the poller for
    a fresh sample now.
    """

    decision: Decision | None = None
    grants: tuple[Admit, ...] = ()
    refusals: tuple[Refuse, ...] = ()
    cancelled: tuple[int, ...] = ()
    wake_at: float | None = None
    wants_reading: bool = False


NOTHING = Step()
