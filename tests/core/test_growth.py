"""Output by the engine's own counter: streams that merge or miscount tokens, and answers in one piece."""

from __future__ import annotations

import pytest

from tests.core.driver import Driver, wide


def flow(driver: Driver, tickets: range, *, rate: float, shown: float, running: int | None = None) -> None:
    """Ten seconds in which every lease generates `rate` tokens a second and shows the share `shown`."""
    for second in range(11):
        made = rate * second
        for ticket in tickets:
            lease = driver.instance.ledger.leases[ticket]
            if lease.ask.streams:
                driver.progress(ticket, made * shown)
        count = len(tickets) if running is None else running
        driver.read(0.3, waiting=0, running=count, generation_tokens=1000.0 + made * count)
        driver.pass_s(1.0)


@pytest.mark.parametrize("shown", [0.25, 0.7, 1.25])
def test_what_streams_show_is_corrected_by_the_engines_counter(shown: float) -> None:
    """Merged or miscounted tokens do not end up in the share of the prompts."""
    driver = Driver(wide(capacity_tokens=10_000))
    for _ in range(4):
        driver.admit(streams=True, max_output_tokens=1000)
    flow(driver, range(1, 5), rate=40.0, shown=shown)
    for lease in driver.instance.ledger.leases.values():
        assert lease.seen == pytest.approx(400, rel=0.02)


@pytest.mark.parametrize(("declared", "seen"), [(300, 299.0), (0, 0.0)])
def test_one_that_runs_has_not_reached_its_maximum(declared: int, seen: float) -> None:
    """Whatever the factor makes of its stream; nor has it generated less than nothing."""
    driver = Driver(wide(capacity_tokens=10_000))
    for _ in range(4):
        driver.admit(streams=True, max_output_tokens=declared)
    flow(driver, range(1, 5), rate=40.0, shown=0.5)
    assert {lease.seen for lease in driver.instance.ledger.leases.values()} == {seen}


def test_nothing_is_learnt_while_the_engine_works_for_others() -> None:
    """Their tokens are in the counter too."""
    driver = Driver(wide(capacity_tokens=10_000))
    for _ in range(4):
        driver.admit(streams=True, max_output_tokens=1000)
    flow(driver, range(1, 5), rate=40.0, shown=1.0, running=8)
    assert driver.instance.growth.factor == 1.0


def test_answers_in_one_piece_follow_the_counter_a_little_behind_it() -> None:
    """The engine's pace, not that of reports."""
    driver = Driver(wide(capacity_tokens=10_000))
    for index in range(4):
        driver.admit(streams=index > 0, max_output_tokens=1000)
    flow(driver, range(1, 5), rate=40.0, shown=0.5)
    assert driver.instance.growth.rate == pytest.approx(40, rel=0.05)
    lease = driver.instance.ledger.leases[1]
    assert 0.8 * 400 < lease.seen <= 440 / 1.1 + 1
