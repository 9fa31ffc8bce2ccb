"""Limits that change while the gate runs: who is known keeps its place, its level and its debt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.core.driver import Driver, wide
from tests.core.test_gate_properties import TENANTS, GateMachine
from tidegate.core.decisions import Reason
from tidegate.core.option_checks import InvalidOption
from tidegate.core.options import TenantLimits
from tidegate.core.quota import Quota


def set_limits(driver: Driver, *, others: TenantLimits | None = None, **tenants: TenantLimits) -> list[int]:
    """Change them; the tickets that start by it."""
    default = others or TenantLimits()
    driver.step = driver.gate.set_limits(tenants, default, driver.now, driver.uniform)
    return [admit.ticket for admit in driver.step.grants]


def limited(**limits: Any) -> Driver:
    """A gate whose tenant `t` has these limits."""
    driver = Driver()
    set_limits(driver, t=TenantLimits(**limits))
    return driver


def quota(driver: Driver, name: str = "t") -> Quota:
    found = driver.gate._books.tenants.get(name, driver.now).quota
    assert found is not None
    return found


def requests_left(driver: Driver) -> float:
    bucket = quota(driver).requests
    assert bucket is not None
    bucket.refill(driver.now)
    return bucket.free()


def test_who_waits_for_its_own_cap_starts_when_it_is_raised() -> None:
    """At once, not with the next request."""
    driver = limited(max_concurrency=1)
    driver.admit()
    second, third = driver.queue().ticket, driver.queue().ticket
    assert set_limits(driver, t=TenantLimits(max_concurrency=2)) == [second]
    assert set_limits(driver, t=TenantLimits()) == [third]
    assert set_limits(driver, t=TenantLimits(max_concurrency=1)) == []
    assert driver.gate.statistics(driver.now).running == 3, "what runs, runs on"


@pytest.mark.parametrize(("rate", "burst", "left"), [(1.0, 20.0, 15.0), (1.0, 4.0, 3.0), (0.1, 8.0, 6.0)])
def test_a_bucket_stays_as_full_as_it_is(rate: float, burst: float, left: float) -> None:
    """Three quarters full before, three quarters full after: a change is no gift and no fine."""
    driver = limited(requests_per_s=1.0, request_burst=8.0)
    driver.admit()
    driver.admit()
    set_limits(driver, t=TenantLimits(requests_per_s=rate, request_burst=burst))
    assert requests_left(driver) == pytest.approx(left)


def test_debt_stays() -> None:
    """Tokens used beyond the estimate are owed whatever the rate is now."""
    driver = limited(tokens_per_s=1.0, token_burst=100.0)
    ticket = driver.admit().ticket
    driver.release(ticket, prompt_tokens=10, output_tokens=190)
    set_limits(driver, t=TenantLimits(tokens_per_s=2.0, token_burst=100.0))
    bucket = quota(driver).tokens
    assert bucket is not None
    assert bucket.level == 0.0
    assert bucket.debt == pytest.approx(100.0)


def test_whoever_was_told_a_time_by_the_old_rate_is_not_bound_to_it() -> None:
    """A raised quota lets it in now; with a lowered one it is told another time, not the same again."""
    driver = limited(requests_per_s=0.01, request_burst=1.0)
    driver.admit()
    told = driver.refuse(identity="me")
    assert told.retry_after_s == pytest.approx(100.0)
    set_limits(driver, t=TenantLimits(requests_per_s=10.0, request_burst=1.0))
    driver.now += 0.1
    driver.admit(identity="me")
    set_limits(driver, t=TenantLimits(requests_per_s=0.001, request_burst=1.0))
    again = driver.refuse(identity="me")
    assert again.reason is Reason.RATE_LIMITED
    assert again.retry_after_s == pytest.approx(1000.0)


def test_limits_that_stay_leave_the_bookings_alone() -> None:
    """A change of somebody else, or of one's weight, costs nobody its place."""
    driver = limited(requests_per_s=0.01, request_burst=1.0)
    driver.admit()
    driver.refuse(identity="me")
    before = quota(driver)
    heavier = TenantLimits(requests_per_s=0.01, request_burst=1.0, weight=9.0)
    set_limits(driver, t=heavier, other=TenantLimits(requests_per_s=1.0))
    assert quota(driver) is before
    assert before.booked == 1


def test_a_first_quota_starts_full_and_what_runs_already_owes_it_nothing() -> None:
    """Else a thousand running requests would shut their tenant out for an hour."""
    driver = limited()
    ticket = driver.admit().ticket
    set_limits(driver, t=TenantLimits(tokens_per_s=1.0, token_burst=200.0))
    driver.release(ticket, prompt_tokens=1_000, output_tokens=9_000)
    driver.admit()
    set_limits(driver, t=TenantLimits())
    for _ in range(5):
        driver.admit()


def test_a_tenant_that_is_no_longer_named_is_like_all_others() -> None:
    """And the limits of all others change with it, those of who is known too."""
    driver = limited(max_concurrency=5)
    driver.admit()
    driver.admit("stranger")
    set_limits(driver, others=TenantLimits(max_concurrency=1))
    driver.queue()
    driver.queue("stranger")
    driver.queue("stranger")


def test_the_record_that_strangers_share_follows_too() -> None:
    """Those beyond `max_tenants`."""
    driver = Driver()
    driver.gate._books.tenants._overflow = driver.gate._books.tenants._record(
        "(overflow)", TenantLimits(), driver.now
    )
    set_limits(driver, others=TenantLimits(max_concurrency=3))
    assert driver.gate._books.tenants._overflow.limits.max_concurrency == 3


def test_limits_that_cannot_be_change_nothing() -> None:
    """All or nothing."""
    driver = limited(max_concurrency=1)
    with pytest.raises(InvalidOption, match="priority_class"):
        set_limits(driver, u=TenantLimits(max_concurrency=7), t=TenantLimits(priority_class="nobody"))
    assert driver.gate.options.tenants == {"t": TenantLimits(max_concurrency=1)}
    driver.admit()
    driver.queue()


def test_a_fresh_gate_has_no_more_than_it_was_given() -> None:
    """The options handed in are not touched."""
    options = wide()
    driver = Driver(options)
    set_limits(driver, t=TenantLimits(weight=3.0))
    assert options.tenants == {}


class ChangingLimits(GateMachine):
    """Every operation there is, and limits that change between them."""

    @rule(
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        concurrency=st.sampled_from([None, 1, 3]),
        requests_per_s=st.sampled_from([None, 0.5, 5.0]),
        tokens_per_s=st.sampled_from([None, 50.0, 900.0]),
        whose=st.sampled_from(["capped", "metered", "a", "default"]),
    )
    def change(self, whose: str, weight: float, concurrency: int | None, **rates: Any) -> None:
        """An operator changes somebody's limits; seats stay, since they may be taken."""
        seats = TENANTS[whose].max_queued if whose in TENANTS else None
        limits = TenantLimits(weight=weight, max_concurrency=concurrency, max_queued=seats, **rates)
        default = limits if whose == "default" else TenantLimits()
        tenants = TENANTS if whose == "default" else {**TENANTS, whose: limits}
        self.step = self.watch.take(self.gate.set_limits(tenants, default, self.now, self.uniform))


ChangingLimits.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestChangingLimits = ChangingLimits.TestCase
