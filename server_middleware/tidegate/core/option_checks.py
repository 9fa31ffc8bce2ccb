"""What an option's value must be, and what is said of one that is not.

Law of this file: an error names the field, the value and the way out.
"""

from __future__ import annotations

import math


class InvalidOption(ValueError):
    """An option's value cannot work; the message names the field, the value and the way out."""


def require(condition: bool, name: str, value: object, way_out: str) -> None:
    """Raises `InvalidOption` unless the condition holds."""
    if not condition:
        raise InvalidOption(f"{name} is {value!r}: {way_out}")


def positive(name: str, value: float | None, *, zero: bool = False) -> None:
    """A finite number above 0, or of at least 0; unset is fine.

    Raises:
        InvalidOption: it is none.
    """
    if value is not None:
        fine = math.isfinite(value) and (value > 0 or (zero and value == 0))
        require(fine, name, value, f"set a finite number {'of at least' if zero else 'above'} 0.")


def fraction(name: str, value: float | None) -> None:
    """Above 0 and up to 1; unset is fine.

    Raises:
        InvalidOption: it is none.
    """
    if value is not None:
        hint = f" Did you mean {value / 100:g}?" if 1 < value <= 100 else ""
        fine = math.isfinite(value) and 0 < value <= 1
        require(fine, name, value, f"set a fraction above 0 and up to 1.{hint}")
