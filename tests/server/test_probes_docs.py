"""The page "Which engine, which signal" says what the presets do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.probes.presets import FIGURES, PRESETS, Preset

PAGE = (Path(__file__).parents[2] / "docs/engines.md").read_text()
TABLE = PAGE[PAGE.index("| `probe.engine` |") :].split("\n\n")[0].splitlines()[2:]
ROWS = {
    name: [cell.strip() for cell in row.strip("|").split("|")]
    for row in TABLE
    for name in re.findall(r"`([\w.-]+)`", row.split("|")[1])
    if name in PRESETS
}


def capacity(preset: Preset) -> str:
    """Return what the table says of where the capacity comes from."""
    if "capacity_tokens" in preset.places:
        return "stated"
    return "blocks x block size" if {"capacity_blocks", "block_tokens"} <= set(preset.places) else "no"


def test_every_preset_has_a_row() -> None:
    """A new preset is told."""
    assert set(ROWS) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_row_says_what_the_preset_reads(name: str) -> None:
    """Level, capacity, preemptions and tokens: there or not, as in the code."""
    preset = PRESETS[name]
    _, level, _, stated, preemptions, tokens, _ = ROWS[name]

    assert level.startswith("none") == (not preset.has_kv_level and "kv_used" not in preset.places)
    if not stated.startswith("as vLLM"):
        assert stated.startswith(capacity(preset))
    assert preemptions.startswith("no") == ("preemptions" not in preset.places)
    assert tokens.startswith("no") == ("generation_tokens" not in preset.places)


def test_every_figure_that_can_be_placed_is_named() -> None:
    """`probe.names` takes these."""
    sentence = next(line for line in PAGE.splitlines() if line.startswith("The figures:"))
    assert set(re.findall(r"`(\w+)`", sentence)) == set(FIGURES)
