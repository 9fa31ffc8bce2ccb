"""Who is refused how often: on the operator's page, since metrics have no tenants."""

from __future__ import annotations

from tests.server.bed import Level, bed, until
from tidegate.telemetry.by_tenant import MOST_TENANTS, SLICE_S, SLICES, RefusedByTenant
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.testing import FakeClock


def refused(tenant: str) -> AdmissionEvent:
    return AdmissionEvent(kind=EventKind.REFUSED, tenant=tenant)


def test_a_minute_is_remembered_and_no_more() -> None:
    """What was refused before does not count, whether others came in between or nobody."""
    clock = FakeClock()
    hook = RefusedByTenant(clock)
    for _ in range(3):
        hook(refused("a"))
    clock.advance(SLICE_S * (SLICES - 1))
    hook(refused("b"))
    assert hook.lately() == {"a": 3, "b": 1}
    clock.advance(SLICE_S)
    assert hook.lately() == {"b": 1}
    clock.advance(SLICE_S * SLICES)
    assert hook.lately() == {}


def test_strangers_without_end_take_a_bounded_room() -> None:
    """Those that were there are still counted."""
    hook = RefusedByTenant(FakeClock())
    for number in range(MOST_TENANTS * 2):
        hook(refused(f"address-{number}"))
    hook(refused("address-0"))
    assert len(hook.lately()) == MOST_TENANTS
    assert hook.lately()["address-0"] == 2


def test_callers_without_a_name_are_counted_as_one() -> None:
    """A flood of guessed keys has no tenant."""
    hook = RefusedByTenant(FakeClock())
    hook(refused(""))
    assert hook.lately() == {"unknown": 1}


async def test_the_page_shows_who_hammers() -> None:
    """One key far above its seats, another within: the first stands on top with its refusals."""
    tenants = [{"name": name, "keys": [name], "max_queued": 8} for name in ("hammer", "quiet")]
    async with bed(level=Level(kv_usage=0.97), tenants=tenants) as b:
        sent = [b.send(headers={"authorization": "Bearer hammer"}) for _ in range(20)]
        sent.append(b.send(headers={"authorization": "Bearer quiet"}))
        await until(lambda: b.runtime.statistics().queued == 9)
        await until(lambda: sum(task.done() for task in sent) == 12)
        rows = b.runtime.console.state(with_history=False)["tenants"]
        assert [(row["name"], row["refused_last_minute"]) for row in rows[:2]] == [
            ("hammer", 12),
            ("quiet", 0),
        ]
        b.level.kv_usage = 0.0
        for task in sent:
            await task


async def test_the_page_names_reasons_that_the_gate_never_sees() -> None:
    """Every key is wrong: an empty table of refusals would say that all is well."""
    async with bed(identity={"require_key": True}, tenants=[{"name": "a", "keys": ["right"]}]) as b:
        for _ in range(3):
            answer = await b.post(headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 401
        state = b.runtime.console.state(with_history=False)
    assert state["refused"] == {"invalid_api_key": 3}
