"""What is said about a wrong configuration.

Law of this file: every message names the field, the value and the way out, and no secret is ever shown.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "TIDEGATE_"
FILE_VARIABLE = "TIDEGATE_CONFIG"
_SECRET = {"keys", "headers", "admin_token", "bearer_token"}


class InvalidSettings(ValueError):
    """The configuration cannot work; the message names each field, its value and the way out."""


def known_fields(group: type) -> BeforeValidator:
    """A misspelt option of a group is an error with a suggestion, not a silent default."""
    names = [field.name for field in dataclasses.fields(group)]

    def check(value: object) -> object:
        if isinstance(value, Mapping):
            for name in value:
                if name not in names:
                    raise ValueError(f"unknown option {name!r}.{_suggest(str(name), names)}")
        return value

    return BeforeValidator(check)


def _suggest(name: str, names: Iterable[str]) -> str:
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."


def readable_file(path: str) -> Path:
    """The TOML file, once it has been read without error (pydantic-settings would not name it)."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            tomllib.load(opened)
    except OSError as error:
        raise InvalidSettings(
            f"{FILE_VARIABLE} is {path!r}: {error.strerror}. Name a readable TOML file or unset it."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{path} is not valid TOML: {error}.") from error
    return file


def refuse_unknown_variables(settings: type[BaseModel]) -> None:
    """A misspelt environment variable is an error, not a silent default.

    Raises:
        InvalidSettings: naming the variable and the nearest option.
    """
    known = [f"{PREFIX}{name.upper()}" for name in settings.model_fields]
    for variable in os.environ:
        upper = variable.upper()
        if not upper.startswith(PREFIX) or upper == FILE_VARIABLE or upper.startswith(f"{PREFIX}ENGINE_"):
            continue
        top = upper.split("__", 1)[0]
        if top not in known:
            raise InvalidSettings(f"{variable} is set, but there is no such option.{_suggest(top, known)}")


def told(settings: type[BaseModel], error: ValidationError) -> str:
    """Pydantic's findings as one line: field, value (unless secret), way out."""
    return "; ".join(_told_one(settings, problem) for problem in error.errors(include_url=False))


def _told_one(settings: type[BaseModel], problem: ErrorDetails) -> str:
    path = [str(part) for part in problem["loc"] if not str(part).startswith("function-")]
    field = ".".join(path) or "settings"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{field}: unknown option {path[-1]!r}.{_suggest(path[-1], _siblings(settings, path))}"
    group = path[0] if path else ""
    if message.startswith((f"{group}.", f"{group}[")):
        return message  # it names the field and the value already
    value = problem.get("input")
    is_plain = value is None or isinstance(value, (str, int, float, bool))
    shown = f" is {str(value)[:80]!r}" if is_plain and not _SECRET & set(path) else ""
    return f"{field}{shown}: {message}"


def _siblings(settings: type[BaseModel], path: list[str]) -> Iterable[str]:
    """The options that the group at the end of `path` has."""
    model: Any = settings
    for part in path[:-1]:
        if part.isdigit():
            continue
        annotation = model.model_fields[part].annotation
        inner = [kind for kind in get_args(annotation) if isinstance(kind, type)]
        model = inner[0] if inner else annotation
    return list(model.model_fields)


def explained(error: SettingsError) -> str:
    """pydantic-settings' error about an environment variable that should hold JSON."""
    named = re.search(r'"(\w+)"', str(error))
    field = named[1].upper() if named else "..."
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    return f"{PREFIX}{field} is not valid JSON{cause}: give a list or an object as JSON, or use a TOML file."
