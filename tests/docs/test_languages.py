"""The Chinese pages say what the English ones say: the same commands, the same figures, the same names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, prose, spans, text_of

PAIRS = [
    (page.with_name(page.name.replace(".zh-CN", "")), page)
    for page in sorted([*ROOT.glob("*.zh-CN.md"), *ROOT.glob("docs/**/*.zh-CN.md")])
]


def commands(page: Path) -> list[str]:
    """Lines of code, without comments and paths that a reader puts in."""
    code = "".join(re.findall(r"^```\w*\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL))
    lines = [re.sub(r"(^| +)#.*", "", line).rstrip() for line in code.splitlines()]
    return [line for line in lines if line]


def rows(page: Path) -> list[list[str]]:
    """Figures of each row of each table."""
    table = [line for line in text_of(page).splitlines() if line.startswith("|")]
    return [re.findall(r"\d[\d.,]*", re.sub(r"\]\([^)]*\)", "]", line)) for line in table]


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=map(name_of, [pair[1] for pair in PAIRS]))
def test_both_say_the_same(english: Path, chinese: Path) -> None:
    """Whichever was changed, the other was forgotten."""
    assert commands(english) == commands(chinese)
    assert rows(english) == rows(chinese)
    assert sorted(set(spans(prose(english)))) == sorted(set(spans(prose(chinese))))


def test_there_are_pairs() -> None:
    """The pattern that finds them still does."""
    assert len(PAIRS) >= 2
