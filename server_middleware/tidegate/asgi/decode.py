"""Reads a request body as the app behind us will read it, and never raises.

Law of this file: what the app accepts is understood here too, or a caller could hide behind the
difference: a body with `NaN`, in UTF-16, or with a number written as a string is legal to Python's
`json` and to pydantic. Of doubled keys the last counts, as there. What nobody can read is `None`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

Fields = Mapping[str, Any]

_decode = msgspec.json.Decoder().decode
_LARGEST = 10**12
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_MAX_PARTS = 128
_PART_NAME = re.compile(rb'[;\s]name="([^"\r\n]{0,64})"', re.IGNORECASE)
_FILE_NAME = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)


class Upload:
    """A file in a multipart form; only its size matters."""

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


def decode_body(data: bytes) -> Fields | None:
    """The top-level fields of a JSON object or a multipart form; `None` when it is neither."""
    try:
        body = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        body = _decode_form(data) if data[:2] == b"--" else _decode_leniently(data)
    return body if isinstance(body, dict) else None


def _decode_leniently(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _decode_form(data: bytes) -> dict[str, Any] | None:
    """A multipart form (RFC 7578), as audio is uploaded; the boundary is taken from the body itself."""
    boundary = data.partition(b"\r\n")[0].rstrip()
    fields: dict[str, Any] = {}
    for part in data.split(b"\r\n" + boundary, _MAX_PARTS):
        head, separator, content = part.partition(b"\r\n\r\n")
        name = _PART_NAME.search(head)
        if separator and name is not None:
            key = name[1].decode("latin-1")
            is_file = _FILE_NAME.search(head) is not None
            fields[key] = Upload(len(content)) if is_file else content.decode("utf-8", "replace")
    return fields or None


def as_int(value: object) -> int | None:
    """A whole number as pydantic would take it: also `"100"`, `100.0` and `true`; `None` for all else."""
    if isinstance(value, str):
        value = _from_text(value)
    if isinstance(value, float):
        if not math.isfinite(value) or value != int(value):
            return None
        value = int(value)
    if not isinstance(value, int):
        return None
    return max(-_LARGEST, min(int(value), _LARGEST))


def _from_text(text: str) -> int | float | None:
    if len(text) > 40:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def as_bool(value: object) -> bool:
    """Whether pydantic would take it for true."""
    if isinstance(value, str):
        return value.strip().lower() in _TRUE
    return value is True or value == 1


def as_fields(value: object) -> Fields:
    """A nested object, or an empty one where there is none."""
    return value if isinstance(value, dict) else {}
