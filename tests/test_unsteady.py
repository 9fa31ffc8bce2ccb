"""`scripts/test_group`: a failure is looked at twice, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "test_group"
PLANTED = """
import os, pathlib

def test_beside(): pass

def test_once():
    seen = pathlib.Path("seen")
    if os.environ["FAULT"] == "once" and not seen.exists():
        seen.touch()
        raise AssertionError

def test_always():
    assert os.environ["FAULT"] != "always"

def test_crash():
    if os.environ["FAULT"] == "crash":
        os._exit(1)  # as a failure does, and yet no test has failed
"""


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("none", 0, []),
        ("once", 0, ["FAILED, and are run once more", "UNSTEADY", "test_planted.py::test_once"]),
        ("always", 1, ["FAILED, and are run once more", "FAILED again (exit code 1)"]),
        ("crash", 1, []),
    ],
)
def test_only_a_second_failure_counts(tmp_path: Path, fault: str, code: int, words: list[str]) -> None:
    """Both outcomes are said; a pytest that ends otherwise is not asked again."""
    (tmp_path / "test_planted.py").write_text(PLANTED)
    done = subprocess.run(
        [SCRIPT, "planted", sys.executable, "-q", "-p", "no:asyncio", "test_planted.py"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "FAULT": fault},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert [word for word in words if word not in done.stdout] == []
    assert ("!!!" in done.stdout) == bool(words)
