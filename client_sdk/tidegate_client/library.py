"""The few names that differ between httpx and httpx2, gathered once per library.

Law: no behaviour here; everything else treats both libraries alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .errors import RateLimited

KEEP_IDLE_S = 3.0
"""Unused connections are kept for so long. The libraries' own 5 s is what uvicorn (vLLM, FastAPI) keeps them
for too: a request sent after a wait of about that long would set out just as the server hangs up, and nobody
could say whether it was carried out.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """One HTTP library as the drivers see it.

    `overdue` makes the error of an attempt that the deadline ended, from a message and its request;
    `in_memory`: its answers have no stream to read or close.
    """

    response: Any
    byte_stream: type[Any]
    stream_bases: tuple[type[Any], ...]
    connect_errors: tuple[type[Exception], ...]
    read_errors: tuple[type[Exception], ...]
    failures: tuple[type[Exception], ...]
    decoding_errors: tuple[type[Exception], ...]
    rate_limited: Any
    overdue: Callable[[str, Any], Exception]
    in_memory: bool = False


def library(module: ModuleType, rate_limited: type[RateLimited]) -> Library:
    """Gather the names of `module` (httpx or httpx2)."""
    connect_errors = (module.ConnectError, module.ConnectTimeout)
    read_errors = (module.ReadError, module.ReadTimeout, module.WriteError, module.RemoteProtocolError)
    return Library(
        response=module.Response,
        byte_stream=module.ByteStream,
        stream_bases=(module.SyncByteStream, module.AsyncByteStream),
        connect_errors=connect_errors,
        read_errors=read_errors,
        failures=connect_errors + read_errors,
        decoding_errors=(module.DecodingError,),
        rate_limited=rate_limited,
        overdue=lambda message, request: module.ReadTimeout(message, request=request),
    )


def limits(module: ModuleType) -> Any:
    """The library's own limits of a pool, with unused connections kept for `KEEP_IDLE_S`."""
    return module.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEEP_IDLE_S)
