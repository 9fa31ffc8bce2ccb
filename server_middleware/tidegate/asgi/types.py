"""The ASGI types as plain aliases, and the few questions everyone asks of a scope's headers.

Law of this file: no framework is imported, and nothing here changes a scope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]
"""Header lines as ASGI carries them: names in lower case."""

HeaderList = list[tuple[bytes, bytes]]


def header_lines(headers: Headers, name: bytes) -> Iterator[str]:
    """Every line of that name, in order, decoded as Latin-1 and stripped of surrounding blanks."""
    for key, value in headers:
        if key.lower() == name:
            yield value.decode("latin-1").strip(" \t")


def first_header(headers: Headers, name: bytes) -> str | None:
    """The first line of that name, or `None`."""
    return next(header_lines(headers, name), None)


def list_header(headers: Headers, name: bytes) -> str:
    """All lines of a list-valued field joined by commas, as RFC 9110 allows; empty when absent."""
    return ", ".join(header_lines(headers, name))


def pick(headers: Headers, names: frozenset[bytes]) -> dict[bytes, str]:
    """Those of the (lower-case) names that are there, in one pass; lines of one name joined by commas."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in names:
            text = value.decode("latin-1").strip(" \t")
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def without_headers(headers: Headers, names: frozenset[bytes]) -> HeaderList:
    """A new list without the lines of those (lower-case) names."""
    return [(key, value) for key, value in headers if key.lower() not in names]


def with_content_length(headers: Headers, length_bytes: int) -> HeaderList:
    """A new list whose `content-length`, where there was one, says `length_bytes`."""
    length = str(length_bytes).encode("ascii")
    return [(key, length if key.lower() == b"content-length" else value) for key, value in headers]


def content_length(headers: Headers) -> int | None:
    """The declared body size in bytes; `None` when absent, repeated with different values or not a number."""
    found: bytes | None = None
    for name, value in headers:
        if name.lower() == b"content-length":
            value = value.strip(b" \t")
            if found is not None and found != value:
                return None
            found = value
    return int(found) if found is not None and found.isdigit() and len(found) <= 18 else None
