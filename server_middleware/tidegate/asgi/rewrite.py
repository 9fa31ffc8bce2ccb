"""Drops or lowers single fields of a JSON body.

Law of this file: the values of all other fields keep their very bytes. Only a body that just Python's
lenient reader accepts (NaN, UTF-16) is written anew, by Python's writer.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from tidegate.asgi.decode import as_int

_Object = dict[str, msgspec.Raw]
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_nested = msgspec.json.Decoder(_Object | list[_Object]).decode


class Change(NamedTuple):
    """Lower `field` (of the body, or of each object under `nested`) to `value`; `None` drops it."""

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
        if change.nested is None:
            _apply_raw(body, change)
        else:
            nested = _decode_nested(body[change.nested])
            for part in nested if isinstance(nested, list) else [nested]:
                _apply_raw(part, change)
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
                _apply(part, change)
    return json.dumps(body).encode("ascii")


def _apply_raw(part: _Object, change: Change) -> None:
    if change.value is None:
        part.pop(change.field, None)
    elif change.field in part and _exceeds(msgspec.json.decode(part[change.field]), change.value):
        part[change.field] = msgspec.Raw(b"%d" % change.value)


def _apply(part: dict[str, Any], change: Change) -> None:
    if change.value is None:
        part.pop(change.field, None)
    elif _exceeds(part.get(change.field), change.value):
        part[change.field] = change.value


def _exceeds(value: object, bound: int) -> bool:
    figure = as_int(value)
    return figure is not None and figure > bound
