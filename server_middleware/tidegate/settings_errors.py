"""What is said about a wrong configuration.

Law of this file: every message names the field, the value and the way out, and no secret is ever shown.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_SERVICE_HOST = "_SERVICE_HOST"
_TABLES = ("tenants", "classes")
_CONSEQUENCES = {"default_factory_not_called"}  # of an error that is told anyway
_WAYS_OUT = {  # by pydantic's own names of what is wrong
    "literal_error": "choose {expected}.",
    "int_type": "give a whole number.",
    "int_parsing": "give a whole number, without a unit.",
    "int_from_float": "give a whole number.",
    "float_type": "give a number.",
    "float_parsing": "give a number, without a unit.",
    "bool_type": "give true or false.",
    "bool_parsing": "give true or false.",
    "string_type": "give text, in quotes.",
    "finite_number": "give a finite number.",
    "greater_than": "give more than {gt}.",
    "greater_than_equal": "give {ge} or more.",
    "less_than_equal": "give {le} or less.",
    "tuple_type": 'give a list, e.g. ["a", "b"].',
    "dict_type": "give names with values; in the environment as JSON.",
    "dataclass_type": "this is a group: set its options, as {field}.NAME or {variable}__NAME.",
    "model_type": "this is a group: set its options, as {field}.NAME or {variable}__NAME.",
}


class InvalidSettings(ValueError):
    """The configuration cannot work; the message names each field, its value and the way out."""


def known_fields(group: type) -> BeforeValidator:
    """A misspelt option of a group is an error with a suggestion, not a silent default; nor is `true` 1."""
    names = [field.name for field in dataclasses.fields(group)]

    def check(value: object) -> object:
        if isinstance(value, Mapping):
            for name in value:
                if name not in names:
                    raise ValueError(f"unknown option {name!r}.{_suggest(str(name), names)}")
                if isinstance(value[name], bool):
                    raise ValueError(f"{name} is {value[name]}: give a number.")
        return value

    return BeforeValidator(check)


def _suggest(name: str, names: Iterable[str], inner: Iterable[str] = ()) -> str:
    """The nearest of all, or the list of `names`; that of the `inner` ones would be too long to read."""
    known = sorted(names)
    near = difflib.get_close_matches(name, [*known, *inner], n=1)
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} is not valid TOML: {error}. Correct that line.") from error
    return file


def refuse_unknown_variables(settings: type[BaseModel]) -> None:
    """A misspelt environment variable is an error, not a silent default.

    Raises:
        InvalidSettings: naming the variable and the nearest option.
    """
    known = [f"{PREFIX}{name.upper()}" for name in settings.model_fields]
    others = (f"{PREFIX}ENGINE_", *_service_links(os.environ))
    for variable in os.environ:
        upper = variable.upper()
        if not upper.startswith(PREFIX) or upper == FILE_VARIABLE or upper.startswith(others):
            continue
        top = upper.split("__", 1)[0]
        if top not in known:
            nearest = _suggest(upper, known, _variables_of_groups(settings))
            raise InvalidSettings(f"{variable} is set, but there is no such option.{nearest}")


def _variables_of_groups(settings: type[BaseModel]) -> Iterator[str]:
    """`TIDEGATE_KV__MARGIN` and its like: with one underscore too few it is the commonest slip of all."""
    for group, field in settings.model_fields.items():
        kind = field.annotation
        options = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else ()
        for option in options or getattr(kind, "model_fields", ()):
            yield f"{PREFIX}{group}__{option}".upper()


def _service_links(environ: Mapping[str, str]) -> Iterator[str]:
    """How variables begin that Kubernetes puts into every pod beside a Service named `tidegate...`."""
    for variable in environ:
        if variable.startswith(PREFIX) and variable.endswith(_SERVICE_HOST):
            service = variable.removesuffix(_SERVICE_HOST)
            yield f"{service}_SERVICE_"
            yield f"{service}_PORT"


def told(settings: type[BaseModel], error: ValidationError) -> str:
    """Pydantic's findings as one line: field, value (unless secret), way out."""
    problems = error.errors(include_url=False)
    each_told = (_told_one(settings, each) for each in problems if each["type"] not in _CONSEQUENCES)
    return "; ".join(each_told).replace(".; ", "; ")


def named_setting(message: str) -> str:
    """The first field or variable that a message of ours names: all that a stranger may hear of it."""
    found = re.match(rf"{PREFIX}\w+|[a-z_]+(?:\.[a-z_]+|\[\d+\])*", message)
    return found[0] if found else FILE_VARIABLE


def _told_one(settings: type[BaseModel], problem: ErrorDetails) -> str:
    path = [part for part in problem["loc"] if not str(part).startswith("function-")]
    field, group = _dotted(path), str(path[0]) if path else ""
    message = problem["msg"].removeprefix("Value error, ").replace("tenants[].", "default_tenant.")
    if problem["type"] == "extra_forbidden":
        return f"{field}: unknown option {path[-1]!r}.{_suggest(str(path[-1]), _siblings(settings, path))}"
    if problem["type"] == "missing":
        return f"{field} is missing: set it."
    if message.startswith((f"{group}.", f"{group}[")):
        return message  # it names the field and the value already
    return f"{field}{_shown(problem.get('input'), path)}: {_way_out(problem, field, message)}"


def _dotted(path: Sequence[str | int]) -> str:
    """`tenants[0].keys`; the third tenant counts as 2, as in the file."""
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(steps).removeprefix(".") or "settings"


def _shown(value: object, path: Sequence[str | int]) -> str:
    is_plain = value is None or isinstance(value, (str, int, float, bool))
    names = [part for part in path if isinstance(part, str)]
    is_secret = names[-1:] == ["tenants"] or not _SECRET.isdisjoint(names)  # a bare tenant is often its key
    may_carry_one = "urls" in names and not {"@", "?"}.isdisjoint(str(value))
    return f" is {str(value)[:80]!r}" if is_plain and not (is_secret or may_carry_one) else ""


def _way_out(problem: ErrorDetails, field: str, message: str) -> str:
    if field in _TABLES and problem["type"] == "tuple_type":
        return f"give a list; in TOML each of them begins with [[{field}]], in double brackets."
    template = _WAYS_OUT.get(problem["type"])
    if template is None:
        return message
    variable = PREFIX + field.upper().replace(".", "__")
    return template.format(field=field, variable=variable, **problem.get("ctx", {}))


def _siblings(settings: type[BaseModel], path: Sequence[str | int]) -> Iterable[str]:
    """The options that the group at the end of `path` has."""
    model: Any = settings
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        inner = [kind for kind in get_args(annotation) if isinstance(kind, type)]
        model = inner[0] if inner else annotation
    return list(model.model_fields)


def explained(error: SettingsError) -> str:
    """pydantic-settings' error about an environment variable that should hold JSON."""
    named = re.search(r'"(\w+)"', str(error))
    variable = PREFIX + (named[1].upper() if named else "...")
    cause = error.__cause__
    text = getattr(cause, "doc", None)  # of a JSON error: what was read
    exact = [
        name for name, value in os.environ.items() if name.upper().startswith(variable) and value == text
    ]
    told = f" ({cause})" if cause else ""
    return (
        f'{exact[0] if exact else variable} is not valid JSON{told}: give a list as ["a", "b"], an object as '
        '{"name": "value"}, or use a TOML file.'
    )
