"""Data-parallel ranks behind one address: a ledger for each, and requests charged where they run."""

from __future__ import annotations

import random

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.reading import Reading


class Ranks(Driver):
    """A gate before an address with several ranks, each with a cache of 1,000 tokens."""

    def show(self, *running: int, levels: tuple[float, ...] = ()) -> None:
        """One reading of all ranks: what runs on each."""
        readings = [
            Reading(
                kv_usage=levels[rank] if levels else 0.1,
                running=count,
                waiting=0,
                instance=f"default#{rank}",
            )
            for rank, count in enumerate(running)
        ]
        self.step = self.gate.observe(readings, self.now, self.uniform)

    def charged(self) -> dict[str, int]:
        """Leases by rank."""
        instances = self.gate.statistics(self.now).instances
        return {item.name.partition("#")[2]: item.leases for item in instances if "#" in item.name}


@pytest.fixture
def gate() -> Ranks:
    """Two idle ranks."""
    driver = Ranks(wide(high_watermark=0.8))
    driver.show(0, 0)
    return driver


def test_one_hot_rank_takes_its_own_share_out_not_the_pools(gate: Ranks) -> None:
    """The other rank's room is used, and a request that must go to the hot one waits for it alone."""
    gate.show(9, 0, levels=(0.95, 0.1))
    assert [gate.admit().instance for _ in range(3)] == ["default#1"] * 3
    gate.queue(instance="#0")
    assert gate.admit("other").instance == "default#1"


def test_the_rank_a_caller_names_is_charged(gate: Ranks) -> None:
    """As the engine obeys it; a rank nobody has is no rank."""
    assert [gate.admit(instance="#1").instance for _ in range(3)] == ["default#1"] * 3
    assert gate.admit(instance="#7").instance == "default#0"


def test_a_request_is_charged_where_the_counts_show_it(gate: Ranks) -> None:
    """The engine's balancer has chosen otherwise than the gate."""
    ticket = gate.admit().ticket
    assert gate.charged() == {"0": 1, "1": 0}
    gate.show(0, 1)
    assert gate.charged() == {"0": 0, "1": 1}
    gate.release(ticket)
    assert gate.charged() == {"0": 0, "1": 0}


def test_only_what_one_rank_lacks_and_another_has_more_moves(gate: Ranks) -> None:
    """A request on its way shows nowhere, a stranger's is missed nowhere."""
    gate.admit()
    gate.show(0, 0)
    assert gate.charged() == {"0": 1, "1": 0}
    gate.show(1, 3)
    assert gate.charged() == {"0": 1, "1": 0}


def test_of_several_the_newest_moves(gate: Ranks) -> None:
    """The earlier ones have been seen there before."""
    gate.show(0, 0, levels=(0.1, 0.95))
    first, second = gate.admit().ticket, gate.admit().ticket
    gate.show(1, 1)
    by_name = gate.gate._books.pool.by_name
    assert [list(by_name[f"default#{rank}"].ledger.leases) for rank in (0, 1)] == [[first], [second]]


def test_a_rank_that_was_named_is_not_doubted(gate: Ranks) -> None:
    """The engine has put it there, whatever else it shows."""
    gate.admit(instance="#0")
    gate.show(0, 1)
    assert gate.charged() == {"0": 1, "1": 0}


def test_three_ranks_share_out_what_one_lacks() -> None:
    """Each lease moves once."""
    gate = Ranks(wide())
    gate.show(0, 0, 0)
    for _ in range(6):
        gate.admit()
    gate.show(0, 3, 3)
    assert gate.charged() == {"0": 0, "1": 3, "2": 3}


def test_what_has_been_read_and_seen_goes_along(gate: Ranks) -> None:
    """Held and unread tokens are the moved lease's, before and after its first token."""
    gate.admit(instance="#1")
    ticket = gate.admit().ticket
    gate.progress(ticket, 5)
    gate.show(0, 2)
    before, there = (gate.gate._books.pool.by_name[f"default#{rank}"].ledger for rank in (0, 1))
    assert there.held_tokens() == pytest.approx(sum(lease.held for lease in there.leases.values()))
    assert (there.unread_prompt, before.unread_prompt, before.held_tokens()) == (10, 0, 0)
    gate.progress(ticket, 9)
    assert there.leases[ticket].seen == 9


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_whatever_the_counts_say(seed: int) -> None:
    """Random counts, starts and ends: every lease is charged once, and all ends at nothing."""
    random_ = random.Random(seed)
    gate = Ranks(wide(capacity_tokens=100_000))
    running: list[int] = []
    for _ in range(60):
        gate.now += 0.1
        gate.show(*(random_.randint(0, 6) for _ in range(3)))
        running += [gate.admit(sequences=random_.randint(1, 3)).ticket for _ in range(random_.randint(0, 2))]
        if running and random_.random() < 0.5:
            gate.release(running.pop(random_.randrange(len(running))))
        books = gate.gate._books
        assert sum(gate.charged().values()) == len(running) == len(books.running)
        for ticket in running:
            lease, instance, _ = books.running._places[ticket]
            assert instance.ledger.leases[ticket] is lease
            assert lease.instance == instance.name
    for ticket in running:
        gate.release(ticket)
    assert gate.charged() == {"0": 0, "1": 0, "2": 0}
    assert all(item.ledger.sequences == 0 for item in gate.gate._books.pool.by_name.values())


def test_ranks_are_told_apart_from_instances_that_are_not() -> None:
    """Two addresses without ranks keep what was routed to them."""
    gate = Driver(wide())
    readings = [Reading(kv_usage=0.1, running=count, instance=name) for name, count in (("a", 0), ("b", 1))]
    gate.gate.observe(readings, gate.now, half)
    admitted = gate.admit().instance
    gate.gate.observe(readings, gate.now, half)
    leases = {item.name: item.leases for item in gate.gate.statistics(gate.now).instances}
    assert leases[admitted] == 1
