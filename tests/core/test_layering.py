"""The core is told the time and given its randomness; its imports prove it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tidegate.core

CORE = Path(tidegate.core.__file__).parent
ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
}


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted(CORE.glob("**/*.py")), ids=lambda path: path.name)
def test_core_imports_nothing_that_could_wait_read_a_clock_or_draw(path: Path) -> None:
    """Only pure standard modules and the core itself are imported."""
    foreign = {
        name
        for name in _imported(path)
        if name.split(".")[0] not in ALLOWED and not name.startswith("tidegate.core")
    }
    assert not foreign


@pytest.mark.parametrize("path", sorted(CORE.glob("**/*.py")), ids=lambda path: path.name)
def test_core_files_stay_small_and_state_their_law(path: Path) -> None:
    """A file of the core says what must live in it, and stays readable."""
    text = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring
    assert path.name == "__init__.py" or "Law of this file" in docstring
    assert text.count("\n") <= 300
