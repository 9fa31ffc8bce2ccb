"""The bugs that are planted to try the core's tests: the core has moved on, and each still has its place."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tidegate.core

ROOT = Path(__file__).parent.parent


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_bugs", ROOT / "scripts" / "planted_bugs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("bug", _script().BUGS, ids=lambda bug: str(bug.name))
def test_every_bug_can_be_planted(bug: Any) -> None:
    """Its text stands once in its file, and is not the wrong one already."""
    text = (Path(tidegate.core.__file__).parent / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.right) == 1
    assert bug.right != bug.wrong
