"""Which server, on whose behalf, and for which class and model: what a refusal can apply to.

Law: a credential is used as a key only, hashed; it is never shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from typing import Any

_CREDENTIALS = (
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"x-goog-api-key",
    b"ocp-apim-subscription-key",
    b"x-auth-token",
    b"private-token",
    b"apikey",
)
_QUERY_KEY = re.compile(rb"(?:^|&)(?:key=(?=[^&]{20})|(?:api[-_]?key|access_token)=)([^&]*)")
"""A short `key` is more often what is asked for than who asks, and all who ask belong together."""
_SIGNER = re.compile(
    rb"(?:digest|aws4-hmac-sha256|signature|hawk|oauth) .*?"
    rb"\b(?:username|credential|keyid|id|oauth_token|oauth_consumer_key)=(\"[^\"]*\"|[^\",\s]+)",
    re.IGNORECASE | re.DOTALL,
)
"""Schemes that sign each request anew, and the part of them that stays."""
_CLASS_HEADER = "x-tidegate-priority"
_BODY_BYTES = 4 * 1024 * 1024

_LOOKED_AT = frozenset(_CREDENTIALS) | {b"idempotency-key", b"tidegate-attempt", b"x-stainless-retry-count"}

Sent = Mapping[bytes, bytes]
"""Those of a request's headers that bear on the call, by lower-case name; gathered once: every call pays for
it.
"""


def headers_sent(request: Any) -> Sent:
    """The headers of `request` (httpx or httpx2) that the client looks at."""
    sent = {}
    for raw_name, value in request.headers.raw:
        name = raw_name.lower()
        if name in _LOOKED_AT:
            sent[name] = value
    return sent


def origin_key(request: Any, sent: Sent) -> Hashable:
    """The origin of `request` and its credential."""
    url = request.url
    for name in _CREDENTIALS:
        if name in sent:
            signed = _SIGNER.match(sent[name])
            return url.scheme, url.netloc, hash(sent[name] if signed is None else signed[1])
    in_query = _QUERY_KEY.search(getattr(url, "query", b""))
    return url.scheme, url.netloc, None if in_query is None else hash(in_query[1])


def origin_name(request: Any) -> str:
    """Scheme, host and port of the request's server, to show."""
    return f"{request.url.scheme}://{request.url.netloc.decode('ascii', 'replace')}"


def part_key(request: Any, scope: str) -> tuple[str, str] | None:
    """What a refusal of `scope` applies to beside this request; None for everything at the origin.

    A class is the one the caller asked for (`x-tidegate-priority`; without it the one its credential has). A
    model comes from the JSON body.
    """
    if scope == "class":
        return "class", request.headers.get(_CLASS_HEADER, "")
    if scope == "model":
        return "model", _model(request)
    return None


def part_keys(request: Any) -> tuple[tuple[str, str], ...]:
    """The class and the model that `request` belongs to."""
    return ("class", request.headers.get(_CLASS_HEADER, "")), ("model", _model(request))


def _model(request: Any) -> str:
    content = getattr(request, "_content", b"")
    if not content or len(content) > _BODY_BYTES:
        return ""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else ""
