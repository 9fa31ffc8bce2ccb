"""Bodies and pages read at once, as tests have them: the product reads them as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tidegate.asgi.classify import Route, RouteTable
from tidegate.asgi.cost import Cost, cost_of, unparsed
from tidegate.asgi.decode import decode_body
from tidegate.asgi.plain import plain_cost
from tidegate.probes.exposition import MAX_LINE_BYTES, ExpositionSieve
from tidegate.probes.selectors import Sample


def estimate(data: bytes, route: Route) -> Cost:
    """The cost of a body for that route."""
    plain = plain_cost(data, route)
    if plain is not None:
        return plain
    fields = decode_body(data)
    return unparsed(len(data)) if fields is None else cost_of(fields, route)


def cost(where: Route, **fields: Any) -> Cost:
    """The cost of these fields for that route."""
    return estimate(json.dumps(fields, ensure_ascii=False).encode(), where)


def route(path: str) -> Route:
    """The guarded route at that path."""
    found = RouteTable().match({"type": "http", "method": "POST", "path": path})
    assert found is not None
    return found


CHAT, COMPLETIONS, RESPONSES = route("/v1/chat/completions"), route("/v1/completions"), route("/v1/responses")
MESSAGES, EMBEDDINGS, GENERATE = route("/v1/messages"), route("/v1/embeddings"), route("/generate")


def parse_exposition(page: bytes, wanted: Iterable[str]) -> dict[str, list[Sample]]:
    """The samples of the wanted metrics in a whole page, fed in pieces.

    Raises:
        ProbeError: see `ExpositionSieve`.
    """
    sieve = ExpositionSieve(wanted)
    for start in range(0, len(page), MAX_LINE_BYTES):
        sieve.feed(page[start : start + MAX_LINE_BYTES])
    return sieve.finish()
