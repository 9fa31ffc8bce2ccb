"""The tenants and conversations remembered: bounded, and nobody is forgiven by being forgotten."""

from __future__ import annotations

import pytest

from tests.core.driver import Driver
from tidegate.core.options import GateOptions, TenantLimits
from tidegate.core.tenants import OVERFLOW, Tenants

T0 = 100.0


def test_tenants_are_bounded_and_eviction_forgives_nobody() -> None:
    """Offenders are kept; when nobody may be forgotten, strangers share one record."""
    options = GateOptions(max_tenants=5, default_tenant=TenantLimits(requests_per_s=0.001, request_burst=2.0))
    tenants = Tenants(options)
    for number in range(5):
        offender = tenants.get(f"offender{number}", T0)
        assert offender.quota is not None
        offender.quota.charge(1.0, None, T0)
    strangers = {id(tenants.get(f"stranger{number}", T0)) for number in range(100)}
    assert len(strangers) == 1
    assert tenants.get("stranger7", T0).name == OVERFLOW
    assert len(tenants) == 5
    spent = tenants.get("offender0", T0).quota
    assert spent is not None
    assert spent.requests is not None
    assert spent.requests.free() == pytest.approx(1.0)
    later = T0 + 1e6
    assert tenants.get("stranger7", later).name == "stranger7"
    assert len(tenants) == 5
    assert len(tenants.all()) == 6


def test_a_million_tenants_stay_within_the_bound() -> None:
    """Idle strangers replace each other (ten thousand here; the benchmark runs the million)."""
    driver = Driver(GateOptions(max_tenants=100))
    for number in range(10_000):
        driver.cancel(driver.offer(f"t{number}").ticket)
    assert len(driver.gate._books.tenants) <= 100


def test_sessions_remembered_are_bounded_and_end() -> None:
    """A conversation is under way for some minutes after its last answer."""
    tenants = Tenants(GateOptions())
    tenants.note_session("t", "s", T0)
    assert tenants.is_under_way("t", "s", T0 + 100)
    assert not tenants.is_under_way("t", "s", T0 + 1000)
    for number in range(10_050):
        tenants.note_session("t", str(number), T0)
    assert len(tenants._sessions) == 10_000


def test_tenant_that_runs_is_not_forgotten() -> None:
    """However many strangers come."""
    tenants = Tenants(GateOptions(max_tenants=1))
    busy = tenants.get("busy", 0.0)
    busy.running = 1
    assert tenants.get("stranger", 0.0).name != "stranger"
    assert tenants.get("busy", 0.0) is busy
