"""The documentation holds together: every relative link leads to a file and a heading that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, name_of, prose, text_of


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A page that was moved, or a heading that was renamed, takes its links with it."""
    missing = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        there = page.parent / target if target else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            missing.append(f"{target}#{anchor}")
    assert not missing


def test_both_readmes_link_the_same_pages() -> None:
    """The Chinese reader finds what the English one does."""
    found = [
        set(re.findall(r"\]\((docs/[^)\s]+)\)", text_of(ROOT / name)))
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert found[0] == found[1]
