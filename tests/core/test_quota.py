"""A tenant's quota at the gate: charged by estimate, settled by use."""

from __future__ import annotations

import pytest

from tests.core.driver import FILL, Driver, small, wide
from tidegate.core.decisions import Ending, Reason
from tidegate.core.options import GateOptions, QueueOptions, TenantLimits


def test_refusal_costs_nothing() -> None:
    """Whoever leaves the room without having started gets its quota back."""
    options = GateOptions(
        kv=small().kv,
        queue=QueueOptions(max_requests=1),
        default_tenant=TenantLimits(
            requests_per_s=0.001, request_burst=3, tokens_per_s=0.001, token_burst=1000, max_queued=5
        ),
    )
    driver = Driver(options)
    driver.admit(**FILL)
    waiting = driver.queue(**FILL)
    quota = driver.gate._books.tenants.get("t", driver.now).quota
    assert quota is not None
    assert quota.requests is not None
    assert quota.tokens is not None
    assert quota.requests.free() == pytest.approx(1.0)
    assert driver.refuse(**FILL).reason is Reason.QUEUE_FULL
    assert quota.requests.free() == pytest.approx(1.0)
    driver.cancel(waiting.ticket)
    assert quota.requests.free() == pytest.approx(2.0)
    assert quota.tokens.free() == pytest.approx(910.0)


def test_quota_is_charged_by_estimate_and_settled_by_use() -> None:
    """What was not used comes back; what was used beyond is owed; a failure without work costs no tokens."""
    options = wide()
    options.tenants["m"] = TenantLimits(tokens_per_s=0.001, token_burst=1000.0)
    driver = Driver(options)
    quota = driver.gate._books.tenants.get("m", driver.now).quota
    assert quota is not None
    assert quota.tokens is not None
    ticket = driver.admit("m").ticket
    assert quota.tokens.free() == pytest.approx(900)
    driver.release(ticket, prompt_tokens=10, output_tokens=40)
    assert quota.tokens.free() == pytest.approx(950)
    ticket = driver.admit("m").ticket
    driver.release(ticket, prompt_tokens=100, output_tokens=100)
    assert quota.tokens.free() == pytest.approx(750)
    ticket = driver.admit("m").ticket
    driver.release(ticket, Ending.FAILED)
    assert quota.tokens.free() == pytest.approx(750)
    ticket = driver.admit("m").ticket
    driver.progress(ticket, 30)
    driver.release(ticket, Ending.ABANDONED)
    assert quota.tokens.free() == pytest.approx(710)


def test_quota_refusals_name_the_bucket_and_a_prompt_above_the_burst_is_permanent() -> None:
    """Requests and tokens are told apart; what can never fit is said at once."""
    options = wide()
    options.tenants["r"] = TenantLimits(requests_per_s=1.0, request_burst=1.0)
    options.tenants["k"] = TenantLimits(tokens_per_s=10.0, token_burst=100.0)
    driver = Driver(options)
    driver.admit("r")
    refusal = driver.refuse("r")
    assert (refusal.reason, refusal.scope, refusal.retry_after_s) == (Reason.RATE_LIMITED, "tenant", 1.0)
    driver.admit("k")
    assert driver.refuse("k").reason is Reason.TOKEN_RATE_LIMITED
    permanent = driver.refuse("k", prompt_tokens_floor=101)
    assert (permanent.reason, permanent.retry_after_s) == (Reason.COST_ABOVE_BURST, None)
