"""An engine that has died is charged with nothing more; one whose metrics page has failed works on."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.absent import FOR_S
from tidegate.core.options import GateOptions
from tidegate.core.reading import Reading
from tidegate.processes import part_of

SIZE = 300  # tokens of a request, of the 1,000 of an engine


def engines(*names: str, options: GateOptions | None = None) -> Driver:
    """Each of them empty, and read just now."""
    driver = Driver(options)
    read(driver, dict.fromkeys(names, 0))
    return driver


def read(driver: Driver, running: dict[str, int | None]) -> None:
    """Each of these says how many requests it runs."""
    for name, count in running.items():
        level = min(1.0, (count or 0) * SIZE / 1000)
        driver.gate.observe(
            [Reading(kv_usage=level, running=count, waiting=0, instance=name)], driver.now, half
        )


def start_all(driver: Driver, most: int = 20) -> Counter[str]:
    """Requests until one has to wait; how many are charged to which engine."""
    charged: Counter[str] = Counter()
    for _ in range(most):
        decision = driver.offer(prompt_tokens=SIZE - 10, max_output_tokens=10)
        instance = getattr(decision, "instance", None)
        if instance is None:
            break
        charged[instance] += 1
    return charged


def fail(driver: Driver, *names: str) -> None:
    for name in names:
        driver.gate.probe_failed(name, driver.now, half)


@pytest.mark.parametrize("dead", [("b",), ("b", "c")])
def test_one_that_has_gone_is_room_that_nobody_has(dead: tuple[str, ...]) -> None:
    """Its callers' balancer sends all to those that are left, which run all that is charged."""
    alive = {"a", "b", "c"} - {*dead}
    driver = engines("a", "b", "c")
    assert start_all(driver) == {"a": 3, "b": 3, "c": 3}
    for _ in range(3):
        driver.now += FOR_S / 2
        fail(driver, *dead)
        read(driver, dict.fromkeys(alive, -(-9 // len(alive))))
    for ticket in range(1, 10):
        driver.release(ticket)
    read(driver, dict.fromkeys(alive, 0))
    assert set(start_all(driver)) == alive


def test_one_that_is_named_no_more_has_gone_too() -> None:
    """A pod that was replaced by another, a rank that was taken away: nobody fails to read it."""
    driver = engines("a", "b")
    start_all(driver)
    for _ in range(13):
        driver.now += FOR_S
        read(driver, {"a": 6})
    for ticket in range(1, 7):
        driver.release(ticket)
    read(driver, {"a": 0})
    assert set(start_all(driver)) == {"a"}


def test_it_is_back_with_its_next_reading() -> None:
    """Restarted, it has its share again."""
    driver = engines("a", "b")
    start_all(driver)
    for _ in range(3):
        driver.now += FOR_S
        fail(driver, "b")
        read(driver, {"a": 6})
    for ticket in range(1, 7):
        driver.release(ticket)
    read(driver, {"a": 0, "b": 0})
    assert set(start_all(driver)) == {"a", "b"}


@pytest.mark.parametrize("told", [3, None])
def test_one_whose_page_has_failed_keeps_its_share(told: int | None) -> None:
    """The other runs its own part only, or does not say; then silence proves nothing."""
    driver = engines("a", "b")
    start_all(driver)
    for _ in range(5):
        driver.now += FOR_S
        fail(driver, "b")
        read(driver, {"a": told})
    for ticket in range(1, 7):
        driver.release(ticket)
    read(driver, {"a": 0})
    assert set(start_all(driver)) == {"a", "b"}


@pytest.mark.parametrize(("running", "takes"), [(12, {"a", "b"}), (24, {"a"})])
def test_what_other_processes_send_is_no_proof(running: int, takes: set[str]) -> None:
    """Each of four gates has sent six: twelve are one engine's part, twenty-four are all."""
    driver = engines("a", "b", options=part_of(wide(capacity_tokens=4000), 4))
    assert start_all(driver) == {"a": 3, "b": 3}
    for _ in range(3):
        driver.now += FOR_S
        fail(driver, "b")
        read(driver, {"a": running})
    for ticket in range(1, 7):
        driver.release(ticket)
    read(driver, {"a": 0})
    assert set(start_all(driver)) == takes


def test_one_moment_is_no_proof() -> None:
    """The figures of an engine and our own are not of one instant."""
    driver = engines("a", "b")
    start_all(driver)
    fail(driver, "b")
    for running in (6, 3, 6):
        driver.now += FOR_S
        read(driver, {"a": running})
    for ticket in range(1, 7):
        driver.release(ticket)
    read(driver, {"a": 0})
    assert set(start_all(driver)) == {"a", "b"}


def test_where_nobody_can_be_read_nobody_has_gone() -> None:
    """The policy for a blind gate rules."""
    driver = engines("a", "b")
    start_all(driver)
    for _ in range(3):
        driver.now += FOR_S
        fail(driver, "a", "b")
    assert not any(item.has_gone for item in driver.gate._books.pool.by_name.values())
