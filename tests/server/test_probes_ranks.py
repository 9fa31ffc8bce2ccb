"""Data-parallel ranks behind one address, from the request's header to the ledger."""

from __future__ import annotations

import pytest

from tests.server.bed import Level, bed, until
from tidegate import Reading
from tidegate.asgi.said import said


class TwoRanks(Level):
    """A probe that sees one hot rank and one cool one."""

    async def read(self) -> list[Reading]:  # type: ignore[override]
        return [
            Reading(kv_usage=level, running=0, waiting=0, capacity_tokens=10_000, instance=f"e#{rank}")
            for rank, level in enumerate((0.97, 0.1))
        ]


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (b"2", "#2"),
        (b"02", "#2"),
        (b" 0 ", "#0"),
        (b"-1", None),
        (b"", None),
        (b"1.5", None),
        (b"9999999", None),
        ("²".encode("latin-1"), None),
        (b"one", None),
    ],
)
def test_the_rank_header_is_a_whole_number_or_nothing(value: bytes, rank: str | None) -> None:
    """A malformed header is no header, as for the engine."""
    assert said([(b"x-data-parallel-rank", value)]).rank == rank


async def test_a_named_rank_waits_for_its_own_room_and_holds_nobody_else_back() -> None:
    """The hot rank's request waits, everyone else's passes, and both ranks are shown."""
    async with bed(level=TwoRanks()) as gated:
        gated.app.go.clear()
        hot = gated.send(headers={"X-data-parallel-rank": "0"})
        await until(lambda: gated.runtime.statistics().queued == 1)
        others = [gated.send(headers=headers) for headers in ({}, {"X-data-parallel-rank": "1"})]
        await until(lambda: gated.runtime.statistics().running == 2)

        leases = {item.name: item.leases for item in gated.runtime.statistics().instances}
        assert leases == {"e#0": 0, "e#1": 2}
        gated.app.go.set()
        assert [(await other).status_code for other in others] == [200, 200]
        hot.cancel()
