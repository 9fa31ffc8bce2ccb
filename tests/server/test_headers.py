"""What refusals say in their headers, and what callers' headers are taken to mean (cases R2 to R5, R9)."""

from __future__ import annotations

import math
from typing import Any, cast

import http_sf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.asgi import headers as codec
from tidegate.core.decisions import Reason, Refuse, Scope

WALL = 1_795_954_896.25
TEMPORARY = [
    reason
    for reason in Reason
    if reason not in (Reason.SUPERSEDED, Reason.PROMPT_TOO_LARGE, Reason.COST_ABOVE_BURST)
]
waits = st.floats(0, 1e6, allow_nan=False)
scopes: st.SearchStrategy[Scope] = st.sampled_from(["request", "tenant", "class", "model"])


def written(refuse: Refuse, *, send_policy: bool = True, expose_limits: bool = True) -> dict[str, str]:
    lines = codec.refusal_headers(
        refuse, wall_now_s=WALL, send_policy=send_policy, expose_limits=expose_limits
    )
    names = [name for name, _ in lines]
    assert len(set(names)) == len(names), "each header once (case R3)"
    assert all(name == name.lower() for name in names)
    return {name.decode(): value.decode("ascii") for name, value in lines}


def parsed(value: str) -> list[tuple[str, dict[str, Any]]]:
    return cast("list[tuple[str, dict[str, Any]]]", http_sf.parse(value.encode(), tltype="list"))


@given(
    st.sampled_from(TEMPORARY), waits, st.none() | waits, st.none() | st.floats(0, 1e9), st.floats(-1, 1e9)
)
@settings(deadline=None)
def test_waits_are_whole_true_and_consistent(
    reason: Reason, wait_s: float, reset_s: float | None, limit: float | None, remaining: float
) -> None:
    """Whoever waits as any of the headers says is never early, and they agree with each other."""
    fields = written(
        Refuse(
            ticket=1,
            reason=reason,
            scope="model",
            retry_after_s=wait_s,
            limit=limit,
            remaining=remaining,
            reset_after_s=reset_s,
        )
    )
    seconds, milliseconds = int(fields["retry-after"]), int(fields["retry-after-ms"])
    assert seconds >= 1
    assert seconds == max(1, math.ceil(milliseconds / 1000))
    assert 0 <= milliseconds / 1000 - wait_s < 0.002 or milliseconds == 1
    [(name, parameters)] = parsed(fields["ratelimit"])
    assert name == codec.bound_name(reason)
    assert 0 <= parameters["t"] <= seconds
    assert ("x-ratelimit-limit" in fields) is (limit is not None)
    if limit is not None:
        reset = wait_s if reset_s is None else reset_s
        assert 0 <= int(fields["x-ratelimit-reset"]) - (WALL + reset) <= 1.002
        assert int(fields["x-ratelimit-remaining"]) == parameters["r"] == max(0, math.floor(remaining))
        [(policy, quota)] = parsed(fields["ratelimit-policy"])
        assert (policy, quota["q"]) == (name, math.ceil(round(limit, 6)))


def test_queue_full_line_by_line() -> None:
    """One refusal in full, so that a change of the wire format is seen."""
    refuse = Refuse(ticket=1, reason=Reason.QUEUE_FULL, scope="model", retry_after_s=2.3705, limit=64)
    assert written(refuse) == {
        "retry-after": "3",
        "retry-after-ms": "2371",
        "ratelimit": '"queue";r=0;t=3',
        "cache-control": "no-store",
        "x-should-retry": "true",
        "tidegate-reason": "queue_full",
        "x-ratelimit-limit": "64",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "1795954899",
        "ratelimit-policy": '"queue";q=64;qu="concurrent-requests"',
    }


def test_limits_can_be_hidden_and_policy_is_opt_in() -> None:
    """How large the bounds are is capacity; operators may keep it to themselves."""
    refuse = Refuse(ticket=1, reason=Reason.RATE_LIMITED, scope="tenant", retry_after_s=1.0, limit=60)
    assert "ratelimit-policy" not in written(refuse, send_policy=False)
    hidden = written(refuse, expose_limits=False)
    assert not {name for name in hidden if name.startswith(("x-ratelimit", "ratelimit-policy"))}
    assert hidden["retry-after"] == "1"


@pytest.mark.parametrize("reason", [Reason.SUPERSEDED, Reason.PROMPT_TOO_LARGE, Reason.COST_ABOVE_BURST])
@pytest.mark.parametrize("wait_s", [None, 3.0])
def test_final_refusals_never_ask_to_come_back(reason: Reason, wait_s: float | None) -> None:
    """Permanent and superseded: no Retry-After, and SDKs that would retry are told not to (case L7)."""
    fields = written(Refuse(ticket=1, reason=reason, scope="request", retry_after_s=wait_s, limit=5))
    assert fields == {
        "cache-control": "no-store",
        "x-should-retry": "false",
        "tidegate-reason": reason.value,
    }


@pytest.mark.parametrize("wait_s", [math.inf, math.nan, 1e300, -5.0])
def test_absurd_waits_still_give_a_legal_header(wait_s: float) -> None:
    """A fault upstream must not put `inf` on the wire."""
    fields = written(Refuse(ticket=1, reason=Reason.QUEUE_FULL, scope="model", retry_after_s=wait_s))
    assert fields["retry-after"].isdigit()
    assert len(fields["retry-after"]) <= 15


def request(name: str, *values: str) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for value in values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["wait=10"], 10.0),
        (["respond-async, wait=10"], 10.0),
        (["respond-async", "WAIT = 10"], 10.0),
        (['wait="10"'], 10.0),
        (["wait=10; x=y"], 10.0),
        (["wait=10, wait=99"], 10.0),
        (["wait=0"], 0.0),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait=9999999999"], None),
        (["wait"], None),
        (["await=3"], None),
        ([""], None),
        ([], None),
    ],
)
def test_prefer_wait(values: list[str], expected: float | None) -> None:
    """RFC 7240: delta-seconds, the first one counts, anything else is no preference."""
    assert codec.parse_prefer_wait(request("Prefer", *values)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("600", 600.0),
        ("4.5", 4.5),
        ("0", None),
        ("NOT_GIVEN", None),
        ("nan", None),
        ("-1", None),
        ("1e3", None),
    ],
)
def test_read_timeout(value: str, expected: float | None) -> None:
    """The SDKs' own read time-out; what is not a plain number is unknown."""
    assert codec.parse_read_timeout(request("X-Stainless-Read-Timeout", value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("8e03978e", "8e03978e"),
        (r'"a\"b"', 'a"b'),
        ('"open', None),
        ('"a", "b"', None),
        ('""', None),
        ("", None),
        ("a b", None),
        ("é", None),
        ("x" * 256, None),
        ("x" * 255, "x" * 255),
        ("x" * 100_000, None),
    ],
)
def test_idempotency_key(value: str, expected: str | None) -> None:
    """A structured string, or the bare token most clients send; no key when malformed."""
    assert codec.parse_idempotency_key(request("Idempotency-Key", value)) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], 1),
        ([(b"x-stainless-retry-count", b"0")], 1),
        ([(b"x-stainless-retry-count", b"2")], 3),
        ([(b"tidegate-attempt", b"2")], 2),
        ([(b"tidegate-attempt", b"0")], 1),
        ([(b"tidegate-attempt", b"4"), (b"x-stainless-retry-count", b"1")], 4),
        ([(b"tidegate-attempt", b"\xb2")], 1),
        ([(b"tidegate-attempt", b"9999999999999")], 1),
    ],
)
def test_attempt(lines: list[tuple[bytes, bytes]], expected: int) -> None:
    """Attempts count from 1, whoever counts them."""
    assert codec.parse_attempt(lines) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"prefer", b"idempotency-key", b"tidegate-attempt"]), st.binary(max_size=40)
        )
    )
)
@settings(deadline=None)
def test_no_request_header_raises(lines: list[tuple[bytes, bytes]]) -> None:
    """Any bytes in the headers we read are taken or ignored."""
    codec.parse_prefer_wait(lines)
    codec.parse_idempotency_key(lines)
    codec.parse_read_timeout(lines)
    assert codec.parse_attempt(lines) >= 1


def test_server_timing() -> None:
    """The queue wait of an admitted request, in milliseconds."""
    assert codec.server_timing(0.01234) == (b"server-timing", b"tidegate;dur=12.3")
