"""Several engines behind one address: on which of them does a request run?

Law of this file: the engine's counts decide. A lease is charged to the rank its caller has named, else to
the one the gate would choose. Where one rank then runs fewer requests than are charged to it and another
more, the newest of those leases move. A request that no rank shows is on its way and stays where it is;
one that no rank misses is a stranger's. Ranks of one address are named `address#rank`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from tidegate.core.instance import Instance
from tidegate.core.ledger import Lease
from tidegate.core.reading import Reading

MARK = "#"


def of_rank(instances: Iterable[Instance], mark_and_rank: str) -> list[Instance]:
    """Return the instances that are rank `#n` of their address."""
    return [instance for instance in instances if instance.name.endswith(mark_and_rank)]


def follow(
    readings: Sequence[Reading], by_name: Mapping[str, Instance], now: float
) -> list[tuple[Lease, Instance]]:
    """Charge leases to the ranks whose counts show them; returns which have moved, and where to."""
    moved = []
    for surplus in _surplus_by_address(readings, by_name):
        for source, target in itertools.permutations(surplus, 2):
            for lease in _newest(source, min(-surplus[source], surplus[target])):
                surplus[source] += lease.ask.sequences
                surplus[target] -= lease.ask.sequences
                _move(lease, source, target, now)
                moved.append((lease, target))
    return moved


def _surplus_by_address(
    readings: Sequence[Reading], by_name: Mapping[str, Instance]
) -> Iterable[dict[Instance, int]]:
    """By address: how many sequences each rank has beyond those charged to it."""
    addresses: dict[str, dict[Instance, int]] = {}
    for reading in readings:
        address, mark, _ = reading.instance.rpartition(MARK)
        instance = by_name.get(reading.instance)
        if mark and instance is not None and reading.running is not None:
            present = reading.running + (reading.waiting or 0)
            addresses.setdefault(address, {})[instance] = present - instance.ledger.sequences
    return addresses.values()


def _newest(source: Instance, sequences: int) -> list[Lease]:
    """The newest leases that the gate placed there by itself, of so many sequences at most."""
    taken: list[Lease] = []
    for lease in reversed(source.ledger.leases.values()):
        if sequences <= 0:
            break
        if lease.ask.instance is None and not lease.is_drained and lease.ask.sequences <= sequences:
            sequences -= lease.ask.sequences
            taken.append(lease)
    return taken


def _move(lease: Lease, source: Instance, target: Instance, now: float) -> None:
    source.ledger.remove(lease.ask.ticket)
    first_token_at, lease.first_token_at = lease.first_token_at, None
    target.ledger.add(lease)
    if first_token_at is not None:
        target.ledger.mark_first_token(lease, first_token_at)
    lease.instance = target.name
    for instance in (source, target):
        instance.signal.busy(len(instance.ledger.leases), now)
