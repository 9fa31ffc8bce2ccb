"""How some options may be written.

Law of this file: what an environment variable can only say as text means the same as in TOML or Python.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode


def _listed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f'not valid JSON ({error}): write ["a", "b"] or a, b.') from error
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
"""A list of texts; in the environment separated by commas, or JSON."""

FromText = BeforeValidator(_number)
"""For a choice among numbers, which the environment gives as text."""
