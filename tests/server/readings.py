"""Bodies and pages read at once, as tests have them: the product reads them as they come."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.asgi.classify import Route
from tidegate.asgi.cost import Cost, cost_of, unparsed
from tidegate.asgi.decode import decode_body
from tidegate.probes.exposition import MAX_LINE_BYTES, ExpositionSieve
from tidegate.probes.selectors import Sample


def estimate(data: bytes, route: Route) -> Cost:
    """The cost of a body for that route."""
    fields = decode_body(data)
    return unparsed(len(data)) if fields is None else cost_of(fields, route)


def parse_exposition(page: bytes, wanted: Iterable[str]) -> dict[str, list[Sample]]:
    """The samples of the wanted metrics in a whole page, fed in pieces.

    Raises:
        ProbeError: see `ExpositionSieve`.
    """
    sieve = ExpositionSieve(wanted)
    for start in range(0, len(page), MAX_LINE_BYTES):
        sieve.feed(page[start : start + MAX_LINE_BYTES])
    return sieve.finish()
