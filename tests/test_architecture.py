"""The laws that can be read off the source: who imports whom, and what the public names are."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(importlib.import_module("tidegate").__file__ or "").parent
CLIENT = Path(importlib.import_module("tidegate_client").__file__ or "").parent
MAP = Path(__file__).parent.parent / "docs" / "architecture.md"


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


def files_of(folder: Path) -> set[str]:
    """The names of its modules."""
    return {path.name for path in folder.glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize(
    "folder", [SERVER, SERVER / "asgi", SERVER / "core", CLIENT, CLIENT / "core"], ids=lambda path: path.name
)
def test_every_file_is_on_the_map(folder: Path) -> None:
    """By its name: in docs/architecture.md, or where its own package says what each file decides."""
    told = MAP.read_text(encoding="utf-8") + (folder / "__init__.py").read_text(encoding="utf-8")
    assert not files_of(folder) - set(re.findall(r"\w+\.py\b", told))


def test_every_folder_is_on_the_map_and_every_file_of_it_says_what_it_is_for() -> None:
    """Whose files are not named one by one."""
    told = MAP.read_text(encoding="utf-8")
    for root in (SERVER, CLIENT):
        for folder in root.iterdir():
            if (folder / "__init__.py").is_file():
                assert f"{folder.name}/" in told
                for path in folder.glob("*.py"):
                    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_what_is_on_the_map_is_there() -> None:
    """Nobody is sent to a file that has gone."""
    project = MAP.parent.parent
    roots = (SERVER, CLIENT, project / "tests", project / "scripts")
    there = {path.name for root in roots for path in root.rglob("*.py")}
    assert not set(re.findall(r"\w+\.py\b", MAP.read_text(encoding="utf-8"))) - there
