"""A terminal that keeps what is printed."""

from __future__ import annotations

import io

from rich.console import Console


def console() -> Console:
    """Wide enough for one line a fact."""
    return Console(file=io.StringIO(), width=120, force_terminal=False)


def text(out: Console) -> str:
    """All that was printed."""
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()
