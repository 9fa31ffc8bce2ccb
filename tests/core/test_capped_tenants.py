"""A tenant that its own `max_concurrency` holds back is told times by its own pace, not by the server's.

Law of this file: the server is free and quick all along; only the tenant's bound is in the way.
"""

from __future__ import annotations

import dataclasses

import pytest

from tidegate.core.decisions import Reason
from tidegate.core.options import TenantLimits

from .driver import Driver, wide

ANSWER_S = 4.0


def beside_a_quick_tenant(*, max_concurrency: int, max_queued: int = 1) -> Driver:
    """Twenty answers of others in a second, then one of the capped tenant that took four."""
    options = wide()
    capped = TenantLimits(max_concurrency=max_concurrency, max_queued=max_queued)
    driver = Driver(dataclasses.replace(options, tenants={"capped": capped}))
    first = driver.admit("capped").ticket
    for _ in range(80):
        ticket = driver.admit("quick").ticket
        driver.now += ANSWER_S / 80
        driver.release(ticket)
    driver.release(first)
    return driver


def test_a_refused_caller_comes_back_when_its_tenant_has_a_seat() -> None:
    """By the server's rate it would have been a twentieth of a second, again and again."""
    driver = beside_a_quick_tenant(max_concurrency=1)
    driver.admit("capped")
    driver.queue("capped")
    told = [driver.refuse("capped", identity=name) for name in ("a", "b")]
    assert {each.reason for each in told} == {Reason.TENANT_QUEUE_FULL}
    first, second = (each.retry_after_s for each in told)
    assert first is not None
    assert second is not None
    assert ANSWER_S / 2 <= first <= 2 * ANSWER_S
    assert second - first >= ANSWER_S / 2


def test_a_wider_bound_is_a_quicker_pace() -> None:
    """Four at once give a seat back four times as often."""
    waits = []
    for bound in (1, 4):
        driver = beside_a_quick_tenant(max_concurrency=bound)
        for _ in range(bound):
            driver.admit("capped")
        waits.append(driver.queue("capped").estimated_wait_s)
    one, four = waits
    assert one is not None
    assert four is not None
    assert one == pytest.approx(ANSWER_S / 2)
    assert four == pytest.approx(one / 4)


def test_while_it_may_run_more_the_server_is_all_that_counts() -> None:
    """What is in the way then is the server, and its rate is the server's."""
    driver = beside_a_quick_tenant(max_concurrency=2)
    driver.admit("capped", max_output_tokens=980)
    wait_s = driver.queue("capped", max_output_tokens=980).estimated_wait_s
    assert wait_s is not None
    assert wait_s < ANSWER_S / 8
