"""May this request's body be sent a second time?

Law: only what is known to be in memory, or to rewind, is sent again; everything else goes out once.
"""

from __future__ import annotations

from typing import Any


def can_replay(request: Any) -> bool:
    """Whether the body of `request` (httpx or httpx2) can be sent again, byte for byte."""
    if hasattr(request, "_content"):
        return True
    fields = getattr(request.stream, "fields", None)
    return isinstance(fields, list) and all(_rewinds(field) for field in fields)


def _rewinds(field: Any) -> bool:
    """Whether one part of a multipart body is in memory or a file that can be rewound."""
    source = getattr(field, "file", b"")
    if isinstance(source, (bytes, str)):
        return True
    seekable = getattr(source, "seekable", None)
    return callable(seekable) and bool(seekable())
