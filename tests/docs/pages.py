"""The pages of the documentation, and what stands in them.

Law of this file: it reads; the tests judge.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """As pytest shows it."""
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    """Everything on the page."""
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    """Code blocks of one language."""
    return [body for kind, body in _FENCE.findall(text_of(page)) if kind == language]


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", text_of(page))


def spans(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def headings(page: Path) -> list[str]:
    """Titles, as they are written."""
    return re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link to the page may end with after `#`, by GitHub's rule."""
    found: set[str] = set()
    for title in headings(page):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 1
        while slug in found:
            slug, number = f"{slug.removesuffix(f'-{number - 1}')}-{number}", number + 1
        found.add(slug)
    return found
