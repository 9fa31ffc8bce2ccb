"""Drops or sets single fields of a JSON body.

Law of this file: the values of all other fields keep their very bytes. Only a body that just Python's
lenient reader accepts (NaN, UTF-16) is written anew, by Python's writer.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

_Object = dict[str, msgspec.Raw]
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_nested = msgspec.json.Decoder(_Object | list[_Object]).decode


class Change(NamedTuple):
    """Set `field` (of the object, or the list of objects, under `nested`) to `value`; `None` drops it."""

    nested: str | None
    field: str
    value: int | None


def rewrite(data: bytes, changes: list[Change]) -> bytes:
    """The body with the changes made; fields that are absent stay absent.

    Raises:
        ValueError: the data is no JSON object in any reading.
    """
    try:
        return _rewrite_raw(data, changes)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return _rewrite_leniently(data, changes)


def _rewrite_raw(data: bytes, changes: list[Change]) -> bytes:
    body = _decode_object(data)
    for change in changes:
        value = None if change.value is None else msgspec.Raw(b"%d" % change.value)
        if change.nested is None:
            _set(body, change.field, value)
        else:
            nested = _decode_nested(body[change.nested])
            for part in nested if isinstance(nested, list) else [nested]:
                _set(part, change.field, value)
            body[change.nested] = msgspec.Raw(msgspec.json.encode(nested))
    return msgspec.json.encode(body)


def _rewrite_leniently(data: bytes, changes: list[Change]) -> bytes:
    body = json.loads(data)
    if not isinstance(body, dict):
        raise ValueError("The body is not a JSON object.")
    for change in changes:
        target = body if change.nested is None else body[change.nested]
        for part in target if isinstance(target, list) else [target]:
            if isinstance(part, dict):
                _set(part, change.field, change.value)
    return json.dumps(body).encode("ascii")


def _set(part: dict[str, Any], field: str, value: Any) -> None:
    if value is None:
        part.pop(field, None)
    elif field in part:
        part[field] = value
