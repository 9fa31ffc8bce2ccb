"""What is added to the app's own `response.start`: what a page may read, and how long the request waited.

Law of this file: the app's lines stay as they are and in their order; ours come after them. A fault in
here leaves them out, and the answer goes on.
"""

from __future__ import annotations

from tidegate.asgi.cors import expose
from tidegate.asgi.headers import quota_headers, server_timing
from tidegate.asgi.surroundings import Surroundings
from tidegate.asgi.types import HeaderList, Headers, Message

_ALLOW_ORIGIN = b"access-control-allow-origin"


def opening(
    message: Message, around: Surroundings, tenant: str, waited_s: float, applied: Headers
) -> Message:
    """The message with our lines.

    Args:
        message: the app's.
        around: what of ours there is.
        tenant: whose quota may be told.
        waited_s: how long the request stood in the queue.
        applied: lines by which the caller's preferences are acknowledged.
    """
    headers: HeaderList = list(message.get("headers", ()))
    for name, _ in headers:
        if len(name) == len(_ALLOW_ORIGIN) and name.lower() == _ALLOW_ORIGIN:
            headers = expose(headers)
            break
    headers += applied
    options = around.reply
    if options.server_timing:
        headers.append(server_timing(waited_s))
    if options.quota_on_admitted and all(name.lower() != b"ratelimit" for name, _ in headers):
        headers += _quota_left(around, tenant, send_policy=options.expose_limits and options.send_policy)
    return {**message, "headers": headers}


def _quota_left(around: Surroundings, tenant: str, *, send_policy: bool) -> HeaderList:
    try:
        left = around.room.gate.quota_left(tenant, around.clock())
        return quota_headers(left, send_policy=send_policy)
    except Exception as error:  # noqa: BLE001 - the answer goes on without them
        around.on_fault("quota_left", error)
        return []
