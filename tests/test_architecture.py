"""The laws that can be read off the source: who imports whom, and what the public names are."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(importlib.import_module("tidegate").__file__ or "").parent
CLIENT = Path(importlib.import_module("tidegate_client").__file__ or "").parent


def imports(root: Path) -> Iterator[tuple[str, str]]:
    """(file below root, imported module) for every import anywhere in a package."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((str(path.relative_to(root)), alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield str(path.relative_to(root)), node.module


def test_the_server_never_imports_the_client_but_for_the_demo() -> None:
    """They meet on the wire."""
    found = [(file, name) for file, name in imports(SERVER) if name.split(".")[0] == "tidegate_client"]
    assert {file.split("/")[0] for file, _ in found} == {"demo"}


def test_the_client_never_imports_the_server() -> None:
    """It is useful on its own, with three packages."""
    assert not [(file, name) for file, name in imports(CLIENT) if name.split(".")[0] == "tidegate"]


def test_nothing_stands_on_the_demo() -> None:
    """It stands on both halves; only the command knows it."""
    users = {file for file, name in imports(SERVER) if name.startswith("tidegate.demo")}
    assert {file for file in users if not file.startswith("demo/")} == {"cli.py"}


def test_no_module_of_the_server_builds_on_a_framework() -> None:
    """Pure ASGI: the middleware runs where neither Starlette nor FastAPI is installed."""
    frameworks = {"starlette", "fastapi", "uvicorn"}
    found = {file for file, name in imports(SERVER) if name.split(".")[0] in frameworks}
    assert {file.split("/")[0] for file in found} <= {"demo"}


@pytest.mark.parametrize("package", ["tidegate", "tidegate_client"])
def test_public_names_are_sorted_documented_and_there(package: str) -> None:
    """What `__all__` promises can be imported."""
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert names == sorted(names)
    for name in names:
        assert getattr(module, name).__doc__, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Lazy loading does not change what Python says."""
    with pytest.raises(AttributeError, match="no attribute 'AdmisionMiddleware'"):
        importlib.import_module("tidegate").AdmisionMiddleware  # noqa: B018


def test_both_packages_are_typed() -> None:
    """Users' type checkers read our annotations."""
    assert (SERVER / "py.typed").is_file()
    assert (CLIENT / "py.typed").is_file()
