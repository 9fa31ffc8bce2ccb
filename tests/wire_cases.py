"""The one table of wire cases, shared by the server's writer tests, the client's reader tests and the
browser's.

Law: the data is `wire_cases.json`; nothing is added here. A case says which headers arrive, for some with
which body, and what a client must understand; one with `written_from` also says for which refusal Tidegate
itself writes exactly these headers.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class WireCase:
    """One row: header lines in order, the JSON body if it matters, and the advice a client must find in both
    (times in seconds).
    """

    name: str
    status: int
    headers: tuple[tuple[str, str], ...]
    wait_s: float | None
    source: str
    should_retry: bool | None
    nothing_left_s: float | None
    written_from: dict[str, Any] | None = None
    body: Any = None
    quota: bool = False


def _case(row: dict[str, Any]) -> WireCase:
    headers = tuple((name, value) for name, value in row["headers"])
    return WireCase(
        row["name"],
        row["status"],
        headers,
        **row["advice"],
        written_from=row.get("written_from"),
        body=row.get("body"),
        quota=row.get("quota", False),
    )


_table = json.loads((pathlib.Path(__file__).parent / "wire_cases.json").read_text(encoding="utf-8"))

WALL_NOW: float = _table["wall_now"]
"""The reader's clock in every case, epoch seconds."""

CASES: list[WireCase] = [_case(row) for row in _table["cases"]]
WRITTEN_BY_TIDEGATE: list[WireCase] = [case for case in CASES if case.written_from is not None]
