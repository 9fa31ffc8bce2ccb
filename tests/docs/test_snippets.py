"""Code in the documentation: Python compiles, what it imports and calls exists, TOML is a configuration."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES, blocks, name_of
from tidegate import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:  # pydantic-settings brings it
    import tomli as tomllib

OURS = ("tidegate", "tidegate_client")
SNIPPETS = [
    pytest.param(page, body, id=f"{name_of(page)}-{number}")
    for page in PAGES
    for number, body in enumerate(blocks(page, "python"))
]


def parsed(body: str) -> ast.Module:
    """The snippet, which may be a piece of something: its head without a body, its `except` without `try`."""
    inner = textwrap.dedent(body)
    errors = []
    for whole in (inner, f"{inner}    ...", f"try:\n    ...\n{inner}"):
        try:
            return ast.parse(f"async def snippet():\n{textwrap.indent(whole, '    ')}")
        except SyntaxError as error:
            errors.append(error)
    raise errors[0]


def names(tree: ast.Module) -> dict[str, object]:
    """What the snippet imports from us, by the name it has there."""
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                found[alias.asname or alias.name] = getattr(module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OURS:
                    importlib.import_module(alias.name)
                    found[alias.name.split(".")[0]] = importlib.import_module(alias.name.split(".")[0])
    return found


def calls(tree: ast.Module, known: dict[str, object]) -> Iterator[tuple[object, ast.Call]]:
    """Calls of what is ours, by the object that is called, be it by `app.add_middleware`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            is_added = isinstance(node.func, ast.Attribute) and node.func.attr == "add_middleware"
            called = resolved(node.args[0] if is_added else node.func, known)
            if callable(called):
                yield called, node


def resolved(node: ast.expr, known: dict[str, object]) -> object:
    """The object of a name of ours or of an attribute of one; `None`: it is somebody else's.

    Raises:
        AttributeError: there is no such attribute.
    """
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        of = resolved(node.value, known)
        return None if of is None else getattr(of, node.attr)
    return None


@pytest.mark.parametrize(("page", "body"), SNIPPETS)
def test_python_calls_what_there_is(page: Path, body: str) -> None:
    """A parameter that was renamed is renamed in the documentation."""
    tree = parsed(body)
    known = names(tree) or {"Settings": Settings}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolved(node, known)
    for called, call in calls(tree, known):
        if called == Settings.load:
            given = {word.arg: word.value for word in call.keywords if word.arg}
            Settings.load(**{name: ast.literal_eval(value) for name, value in given.items()})
            continue
        parameters = inspect.signature(called).parameters  # type: ignore[arg-type]
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        for word in call.keywords:
            assert takes_any or word.arg is None or word.arg in parameters, f"{ast.unparse(call)}: {word.arg}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name_of)
def test_toml_is_a_configuration(page: Path) -> None:
    """Each block by itself."""
    for body in blocks(page, "toml"):
        configured(body)


def test_manifests_are_manifests() -> None:
    """YAML, and a configuration in it that the server would take."""
    yaml: Any = pytest.importorskip("yaml")
    found = [
        manifest for page in PAGES for body in blocks(page, "yaml") for manifest in yaml.safe_load_all(body)
    ]
    assert {"ConfigMap", "Deployment"} <= {manifest["kind"] for manifest in found}
    for manifest in found:
        for body in manifest.get("data", {}).values():
            configured(body)


def configured(toml: str) -> Settings:
    """The settings of this text, in which a `...` may stand for a hash."""
    return Settings.load(**tomllib.loads(toml.replace("sha256:...", f"sha256:{'0' * 64}")))
