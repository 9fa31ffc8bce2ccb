"""The package as its users get it: pure core, few imports, sorted names, types that check."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest

import tidegate_client
from tidegate_client import RetryPolicy
from tidegate_client.core.policy import RetryPolicy as CorePolicy

PACKAGE = pathlib.Path(tidegate_client.__file__).parent
TYPING_API = pathlib.Path(__file__).parent / "typing_api.py"
PURE = {"__future__", "collections", "dataclasses", "datetime", "enum", "heapq", "math", "re", "typing"}


def imports(path: pathlib.Path) -> set[str]:
    """The top-level names of what a file imports, relative imports left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level > 1 and path.parent.name == "core":
            found.add("..")
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.stem)
def test_the_core_is_pure(path: pathlib.Path) -> None:
    """No clock, no randomness, no I/O, no third party, nothing from the shell around it."""
    assert imports(path) <= PURE


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_the_client_never_imports_the_server(path: pathlib.Path) -> None:
    """The two halves meet on the wire only."""
    assert "tidegate" not in imports(path)


def test_a_bare_install_is_enough() -> None:
    """Importing the package needs httpx, tenacity and http-sf, and loads none of the optional libraries."""
    optional = [
        "httpx2",
        "openai",
        "anthropic",
        "rich",
        "opentelemetry",
        "prometheus_client",
        "uvicorn",
        "pydantic",
    ]
    hooks = ["log", "console", "opentelemetry", "prometheus"]
    modules = ["testing", "sdks", *(f"hooks.{name}" for name in hooks)]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({optional!r}))\n"
        f"for name in {modules!r}: importlib.import_module('tidegate_client.' + name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr == ""


def test_public_names_are_sorted_and_there() -> None:
    """`__all__` is sorted, and every name in it exists."""
    assert tidegate_client.__all__ == sorted(tidegate_client.__all__)
    assert all(hasattr(tidegate_client, name) for name in tidegate_client.__all__)
    assert RetryPolicy is CorePolicy


@pytest.mark.parametrize(
    "checker", [["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]], ids=["mypy", "pyright"]
)
def test_users_types_check(checker: list[str]) -> None:
    """What a user would write passes mypy and pyright, and what would be wrong does not."""
    done = subprocess.run(
        [sys.executable, "-m", *checker, str(TYPING_API)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("max_attempts", 0, "max_attempts is 0: give a whole number"),
        ("max_attempts", True, "max_attempts is True"),
        ("slow_start", 1.5, "slow_start is 1.5"),
        ("wait_budget_s", -1, "wait_budget_s is -1: give seconds, 0 or more"),
        ("deadline_s", 0, "deadline_s is 0: give seconds, or None"),
        ("backoff_cap_s", float("inf"), "backoff_cap_s is inf: give seconds, more than 0"),
        ("jitter_base_s", float("nan"), "jitter_base_s is nan"),
        ("on_give_up", "ignore", "on_give_up is 'ignore': use auto, raise or response"),
        ("retry_statuses", {200}, "retry_statuses is {200}: give a set of error statuses"),
        ("retry_statuses", {"502"}, "retry_statuses is {'502'}"),
        ("retry_statuses", 502, "retry_statuses is 502: give a set"),
        ("concurrency", 5, "concurrency is 5: give AdaptiveConcurrency"),
    ],
)
def test_a_bad_option_is_told_with_the_way_out(field: str, value: object, told: str) -> None:
    """The error names the field, the value and what to write instead."""
    with pytest.raises(ValueError, match="RetryPolicy") as caught:
        RetryPolicy(**{field: value})  # type: ignore[arg-type]

    assert told in str(caught.value)


def test_the_reference_lists_every_option_with_its_default() -> None:
    """The table in the docs has each field of RetryPolicy, in order, with its real default."""
    reference = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "client.md"
    text = reference.read_text(encoding="utf-8")
    table = text.partition("## RetryPolicy")[2].partition("## What is sent again")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    names = [name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)]
    defaults = [default.strip(" `") for _, cell in rows for default in cell.split(",")]

    fields = dataclasses.fields(RetryPolicy)
    assert names == [field.name for field in fields]
    shown = ["none" if field.default == frozenset() else str(field.default) for field in fields]
    assert defaults == [value.removesuffix(".0") for value in shown]
