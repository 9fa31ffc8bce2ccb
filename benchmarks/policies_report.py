"""Targets and plain tables, shared by the benchmarks of the server half.

Law of this file: a target carries its own bound, and whether it is met follows from the figures alone.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: `value` must stand in `relation` to `bound`."""

    name: str
    value: float
    relation: Literal["<=", ">="]
    bound: float

    @property
    def met(self) -> bool:
        """A figure that is not a number meets nothing."""
        if math.isnan(self.value):
            return False
        return self.value <= self.bound if self.relation == "<=" else self.value >= self.bound

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "value": self.value,
            "relation": self.relation,
            "bound": self.bound,
            "met": self.met,
        }


def machine() -> str:
    """What it ran on, without names."""
    where = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} cores, {where}, Python {platform.python_version()}"


def figure(value: object) -> str:
    """A number as a table shows it; anything else as it is."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their widest cell."""
    cells = [list(header), *([figure(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    print()


def print_targets(targets: Sequence[dict[str, Any]]) -> None:
    """Name, measured, bound, and whether it is met."""
    rows = [
        [
            target["name"],
            float(target["value"]),
            f"{target['relation']} {target['bound']:g}",
            "pass" if target["met"] else "MISS",
        ]
        for target in targets
    ]
    print_table(["target", "measured", "bound", ""], rows)
