"""Metrics pages as the engines write them, one small file for each engine and version.

Each file names the source its names were read in; the figures are made up.
"""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).parent


def page(name: str) -> bytes:
    """Return the text of one fixture."""
    return (DIRECTORY / f"{name}.prom").read_bytes()


def names() -> list[str]:
    """Return the names of all fixtures."""
    return sorted(path.stem for path in DIRECTORY.glob("*.prom"))
