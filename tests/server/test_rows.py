"""Rows: what adds up is told in bulk, what listens is told at once, and neither costs the other."""

from __future__ import annotations

import gc
import logging

import pytest

from tests.server.bed import bed
from tidegate.asgi.exchange import Exchange
from tidegate.asgi.identity import IdentityOptions
from tidegate.asgi.sieve import _NAMES, Sieve
from tidegate.telemetry.events import AdmissionEvent, EventKind, Hooks
from tidegate.telemetry.rows import MOST_ROWS, ROW_OF, Row, Rows

ADMITTED = AdmissionEvent(kind=EventKind.ADMITTED, priority_class="vip", waited_s=0.5)


class Adder:
    """A hook that takes rows of one kind."""

    kinds = frozenset({EventKind.ADMITTED, EventKind.LEFT})

    def __init__(self, *, breaks: bool = False) -> None:
        self.rows = {EventKind.ADMITTED: self.take}
        self.taken: list[Row] = []
        self.heard: list[EventKind] = []
        self._breaks = breaks

    def take(self, row: Row) -> None:
        self.taken.append(row)
        if self._breaks:
            raise RuntimeError("bad hook")

    def __call__(self, event: AdmissionEvent) -> None:
        self.heard.append(event.kind)


def test_rows_are_added_up_when_asked_for_and_when_there_are_many() -> None:
    """In order, each once, and never more than so many aside."""
    added: list[Row] = []
    rows = Rows(added.extend)
    rows.append((1,))
    assert added == []
    rows.add_up()
    rows.add_up()
    assert added == [(1,)]
    for number in range(MOST_ROWS):
        rows.append((number,))
    assert len(added) == 1 + MOST_ROWS


def test_who_takes_rows_is_not_told_the_event_too() -> None:
    """An event is made only where somebody hears it."""
    adder, heard = Adder(), list[AdmissionEvent]()
    hooks = Hooks([adder])
    assert not hooks.hears(EventKind.ADMITTED)
    assert hooks.hears(EventKind.LEFT)
    hooks.admitted(ROW_OF[EventKind.ADMITTED](ADMITTED))
    assert adder.taken == [("vip", 0.5)]
    hooks.add(heard.append)
    assert hooks.hears(EventKind.ADMITTED)
    hooks(ADMITTED)
    assert (heard, adder.heard) == ([ADMITTED], [])


def test_a_raising_taker_is_dropped_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry never decides the fate of a request."""
    bad, good = Adder(breaks=True), Adder()
    hooks = Hooks([good, bad, Adder()])
    with caplog.at_level(logging.ERROR, "tidegate"):
        for _ in range(3):
            hooks.admitted(("vip", 0.0))
    assert len(bad.taken) == 1
    assert len(good.taken) == 3
    assert caplog.text.count("was removed") == 1


def test_the_sieve_lets_nothing_through_its_meshes_that_we_read() -> None:
    """In any letter case, in order, with the configured names; and nothing else."""
    sieve = Sieve(IdentityOptions(tenant_header="X-Tenant", end_user_header="X-User"))
    wanted = [(name.title(), b"1") for name in sorted(_NAMES)] + [(b"x-tenant", b"a"), (b"X-USER", b"b")]
    others = [(b"host", b"h"), (b"user-agent", b"u"), (b"accept", b"*/*")]
    mixed = [line for pair in zip(wanted, others * len(wanted), strict=False) for line in pair]
    assert sieve.lines(mixed) == wanted
    assert Sieve(IdentityOptions()).lines([(b"x-tenant", b"a")]) == []


async def test_a_request_leaves_nothing_to_the_garbage_collector() -> None:
    """A cycle for each would have it run fifty times as often, and hold bodies until it does."""
    async with bed() as b:
        await b.post()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(5):
                assert (await b.post()).status_code == 200
            gc.collect()
            left = [item for item in gc.garbage if isinstance(item, Exchange)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
