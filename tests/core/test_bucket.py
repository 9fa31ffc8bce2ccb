"""Token buckets and bookings: tables over named instants."""

from __future__ import annotations

import math

import pytest

from tidegate.core.bucket import TokenBucket
from tidegate.core.options import TenantLimits
from tidegate.core.quota import Quota, Shortfall

T0 = 50.0


def quota(**limits: float) -> Quota:
    """A quota with its buckets full at T0."""
    made = Quota.of(TenantLimits(**limits), 10_000, T0)  # type: ignore[arg-type]
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("after_s", "taken", "free"),
    [(0.0, 0, 10), (0.0, 10, 0), (1.0, 10, 2), (5.0, 10, 10), (500.0, 10, 10), (-3.0, 10, 0)],
)
def test_bucket_refills_at_its_rate_up_to_its_burst(after_s: float, taken: float, free: float) -> None:
    """Idle time saves up no more than the burst; a clock that goes backwards adds nothing."""
    bucket = TokenBucket(2.0, 10.0, T0)
    bucket.level -= taken
    bucket.refill(T0 + after_s)
    assert bucket.free() == pytest.approx(free)


def test_no_more_than_burst_plus_rate_times_time() -> None:
    """A greedy caller gets exactly burst + rate x time, to the request."""
    one = quota(requests_per_s=2.0, request_burst=5.0)
    granted = sum(one.charge(1.0, f"k{step}", T0 + step / 100) is None for step in range(1000))
    assert granted <= 5 + 2 * 10


def test_caller_that_waits_as_told_is_admitted_and_ten_get_ten_instants() -> None:
    """Bookings are a queue of their own: distinct instants, each honoured in full."""
    one = quota(requests_per_s=1.0, request_burst=1.0)
    assert one.charge(1.0, None, T0) is None
    waits = {}
    for number in range(10):
        shortfall = one.charge(1.0, f"c{number}", T0 + 0.1)
        assert shortfall is not None
        waits[f"c{number}"] = T0 + 0.1 + shortfall.retry_after_s
    assert len({round(instant, 3) for instant in waits.values()}) == 10
    for caller, instant in waits.items():
        assert isinstance(one.charge(1.0, "stranger", instant), Shortfall), "a newcomer took a booked place"
        assert one.charge(1.0, caller, instant) is None


def test_nameless_callers_that_wait_as_told_are_admitted() -> None:
    """A booking needs no key: the tenant's next nameless caller takes the earliest one that is due."""
    one = quota(requests_per_s=1.0, request_burst=1.0)
    one.charge(1.0, None, T0)
    waits = sorted(one.charge(1.0, None, T0).retry_after_s for _ in range(5))  # type: ignore[union-attr]
    assert waits == pytest.approx([1, 2, 3, 4, 5])
    assert [one.charge(1.0, None, T0 + wait) for wait in waits] == [None] * 5


def test_early_return_keeps_the_place_it_had() -> None:
    """Asking again sooner neither helps nor costs."""
    one = quota(requests_per_s=1.0, request_burst=1.0)
    one.charge(1.0, None, T0)
    first = one.charge(1.0, "k", T0)
    again = one.charge(1.0, "k", T0 + 0.4)
    assert first is not None
    assert again is not None
    assert again.retry_after_s == pytest.approx(0.6, abs=0.002)
    assert one.booked == 1


def test_unused_booking_lapses_and_frees_its_place() -> None:
    """Who never comes back does not shorten the quota of the others for long."""
    one = quota(requests_per_s=1.0, request_burst=1.0)
    one.charge(1.0, None, T0)
    one.charge(1.0, "gone", T0)
    assert one.charge(1.0, "k", T0 + 100) is None
    assert one.booked == 0


def test_buckets_are_independent_and_the_later_one_is_told() -> None:
    """Hitting one limit leaves the other alone; the refusal names the one that bit."""
    one = quota(requests_per_s=1.0, request_burst=10.0, tokens_per_s=10.0, token_burst=100.0)
    assert one.charge(100.0, None, T0) is None
    shortfall = one.charge(50.0, None, T0)
    assert shortfall is not None
    assert (shortfall.is_tokens, shortfall.limit, shortfall.remaining) == (True, 100.0, 0.0)
    assert shortfall.retry_after_s == pytest.approx(5.0)
    assert one.requests is not None
    assert one.requests.free() == pytest.approx(8.0)  # nine left, one of them booked


def test_debt_is_paid_from_refill_that_nobody_has_booked() -> None:
    """A settlement above its estimate never delays somebody who was told when to come."""
    one = quota(tokens_per_s=10.0, token_burst=100.0)
    assert one.charge(100.0, None, T0) is None
    shortfall = one.charge(50.0, "k", T0)
    assert shortfall is not None
    one.settle(0.0, 200.0, T0)
    assert one.charge(50.0, "k", T0 + shortfall.retry_after_s) is None
    newcomer = one.charge(10.0, "n", T0 + 5.0)
    assert newcomer is not None
    assert newcomer.retry_after_s == pytest.approx(21.0)


def test_settlement_below_the_estimate_gives_back() -> None:
    """What was reserved and not used is there again at once, but never beyond the burst."""
    one = quota(tokens_per_s=10.0, token_burst=100.0)
    one.charge(80.0, None, T0)
    one.settle(0.0, -60.0, T0)
    assert one.tokens is not None
    assert one.tokens.free() == pytest.approx(80.0)
    one.settle(0.0, -600.0, T0)
    assert one.tokens.free() == pytest.approx(100.0)


def test_estimate_above_the_burst_is_charged_as_the_burst() -> None:
    """An estimate never makes a refusal for good."""
    one = quota(tokens_per_s=10.0, token_burst=100.0)
    assert one.chargeable(5000.0) == 100.0
    assert one.charge(5000.0, None, T0) is None


def test_wait_is_rounded_up_to_the_millisecond() -> None:
    """A caller that comes back after exactly that long is never a fraction too early."""
    one = quota(requests_per_s=3.0, request_burst=1.0)
    one.charge(1.0, None, T0)
    shortfall = one.charge(1.0, "k", T0)
    assert shortfall is not None
    assert shortfall.retry_after_s == 0.334


def test_bookings_are_bounded() -> None:
    """Beyond the bound a wait is still told, but no place is kept."""
    one = Quota.of(TenantLimits(requests_per_s=1.0, request_burst=1.0), 3, T0)
    assert one is not None
    one.charge(1.0, None, T0)
    for caller in range(10):
        assert one.charge(1.0, f"c{caller}", T0) is not None
    assert one.booked == 3


def test_peek_charges_nothing_and_lets_a_due_booking_through() -> None:
    """Before the body is read nobody is charged; who may hold a due place is not turned away."""
    one = quota(requests_per_s=1.0, request_burst=1.0)
    assert one.peek(1.0, T0) is None
    assert one.charge(1.0, None, T0) is None
    told = one.peek(1.0, T0)
    assert told is not None
    assert one.peek(1.0, T0 + told.retry_after_s) is None
    assert one.charge(1.0, "key unknown to the peek", T0 + told.retry_after_s) is None


def test_no_limits_no_quota_and_defaults_of_ten_seconds() -> None:
    """Bursts default to ten seconds of their rate, and always hold one request."""
    assert Quota.of(TenantLimits(), 10, T0) is None
    assert quota(requests_per_s=3.0).requests.burst == 30.0  # type: ignore[union-attr]
    assert quota(requests_per_s=0.01).requests.burst == 1.0  # type: ignore[union-attr]
    assert quota(tokens_per_s=7.0).tokens.burst == 70.0  # type: ignore[union-attr]


def test_only_a_full_quota_may_be_forgotten() -> None:
    """Forgetting an offender would hand out a fresh allowance."""
    one = quota(requests_per_s=1.0, request_burst=2.0)
    assert one.is_full(T0)
    one.charge(1.0, None, T0)
    assert not one.is_full(T0 + 0.5)
    assert one.is_full(T0 + 1.5)
    one.settle(3.0, 0.0, T0 + 1.5)
    assert not one.is_full(T0 + 1.6)


def test_late_holder_is_honoured_even_after_the_bucket_was_full() -> None:
    """Booked refill is kept beyond the burst, so a caller a little late finds its place."""
    one = quota(tokens_per_s=10.0, token_burst=10.0)
    one.charge(10.0, None, T0)
    told = [one.charge(10.0, f"c{number}", T0) for number in range(3)]
    last = max(item.retry_after_s for item in told if item is not None)
    assert [one.charge(10.0, f"c{number}", T0 + last + 1) for number in range(3)] == [None] * 3
    assert math.isclose(last, 3.0)


def test_lapsed_and_partly_used_bookings_leave_no_more_than_the_burst() -> None:
    """Refill kept for somebody who never came, or needed less, is not handed out on top."""
    one = quota(tokens_per_s=10.0, token_burst=10.0)
    one.charge(10.0, None, T0)
    for number in range(3):
        one.charge(10.0, f"c{number}", T0)
    assert one.tokens is not None
    assert one.charge(1.0, "c0", T0 + 3.0) is None
    assert one.tokens.level <= max(one.tokens.burst, one.tokens.booked)
    one.refill(T0 + 1000.0)
    assert one.tokens.level == 10.0


def test_what_is_left_is_what_the_next_ones_get() -> None:
    """So many more requests pass at once, and after the time told there is one more."""
    one = quota(requests_per_s=0.5, request_burst=4.0, tokens_per_s=10.0, token_burst=100.0)
    assert one.charge(30.0, None, T0) is None
    requests, tokens = one.left(T0)
    assert (requests.name, requests.limit, requests.remaining) == ("requests", 4.0, 3.0)
    assert requests.reset_s == pytest.approx(2.0)
    assert (tokens.name, tokens.remaining) == ("tokens", 70.0)
    assert tokens.reset_s == pytest.approx(3.0)
    for _ in range(int(requests.remaining)):
        assert one.charge(0.0, None, T0) is None
    spent = one.left(T0)[0]
    assert spent.remaining == 0.0
    assert one.shortfall(0.0) is not None
    one.refill(T0 + spent.reset_s)
    assert one.shortfall(0.0) is None


def test_bookings_and_debt_are_not_left_for_others() -> None:
    """What is promised to a refused caller, or owed, is nobody's to take."""
    one = quota(tokens_per_s=1.0, token_burst=10.0)
    one.settle(0.0, 4.0, T0)
    [tokens] = one.left(T0)
    assert tokens.remaining == pytest.approx(6.0)
    assert one.charge(8.0, "a", T0) is not None
    [tokens] = one.left(T0)
    assert tokens.remaining == 0.0


def test_a_named_booking_that_is_due_opens_the_door_for_a_look() -> None:
    """Whoever comes back with its name is not refused before its body has shown the name."""
    quota = Quota.of(TenantLimits(requests_per_s=1.0, request_burst=1.0), 10, 0.0)
    assert quota is not None
    assert quota.charge(1.0, None, 0.0) is None
    refused = quota.charge(1.0, "name", 0.0)
    assert refused is not None
    assert quota.peek(1.0, 0.0) is not None
    assert quota.peek(1.0, refused.retry_after_s) is None
