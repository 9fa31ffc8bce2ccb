"""The documentation holds together: every relative link leads to a file that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A page that was moved takes its links with it."""
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    relative = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    missing = [link for link in relative if not (page.parent / link).exists()]
    assert not missing


def test_both_readmes_link_the_same_pages() -> None:
    """The Chinese reader finds what the English one does."""
    found = [
        set(re.findall(r"\]\((docs/[^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8")))
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert found[0] == found[1]
