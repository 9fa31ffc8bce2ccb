"""Bodies nested as deeply as a JSON reader just bears: read, refused for their fields, never a fault.

The limit depends on how deep the reader's own caller stands, so every depth around it is tried.
"""

from __future__ import annotations

import contextlib
import sys

import pytest

from tests.server.bed import Level, bed
from tidegate.asgi.classify import RouteTable
from tidegate.asgi.cost import cost_of
from tidegate.asgi.examine import examine
from tidegate.asgi.fields import FieldPolicy, FieldProblem
from tidegate.asgi.tally import Tally
from tidegate.telemetry.events import EventKind

ROUTES = RouteTable()
BODIES = {
    "media": b'{"images": %s}',
    "a field to drop": b'{"priority": 1, "other": %s}',
    "a field to drop, leniently read": b'{"priority": 1, "x": NaN, "other": %s}',
    "a nested field to lower": b'{"sampling_params": {"n": 99, "other": %s}}',
    "text": b'{"messages": %s, "tools": [1]}',
}


def nested(template: bytes, depth: int) -> bytes:
    return template % (b"[" * depth + b"1" + b"]" * depth)


@pytest.mark.parametrize("path", ["/pooling", "/v1/chat/completions"])
@pytest.mark.parametrize("what", BODIES)
def test_no_depth_is_a_fault(what: str, path: str) -> None:
    """An exception of ours would let the request past the gate, and five of them everybody."""
    route = ROUTES.match({"type": "http", "method": "POST", "path": path})
    assert route is not None
    for depth in range(sys.getrecursionlimit() // 2, sys.getrecursionlimit() + 50):
        with contextlib.suppress(FieldProblem):
            examine(nested(BODIES[what], depth), route, FieldPolicy(on_excess_parallel="clamp"))


def test_media_in_lists_of_lists_are_counted_one_by_one() -> None:
    """However deep: deeper than any function could call itself."""
    value: list[object] = ["picture"]
    for _ in range(10 * sys.getrecursionlimit()):
        value = [value, "picture"]
    tally = Tally()
    tally.media(value)
    assert tally.media_items == 10 * sys.getrecursionlimit() + 1
    route = ROUTES.match({"type": "http", "method": "POST", "path": "/pooling"})
    assert route is not None
    assert cost_of({"images": [["a"], "b"]}, route).media_items == 2


async def test_nobody_opens_the_gate_by_nesting() -> None:
    """Through the whole of it: not one fault is recorded."""
    async with bed(level=Level(capacity_tokens=10**9)) as gate:
        for depth in range(3 * sys.getrecursionlimit() // 4, sys.getrecursionlimit()):
            for body in (BODIES["media"], BODIES["a field to drop"]):
                await gate.post(nested(body, depth), path="/pooling")
        assert gate.count(EventKind.FAULT) == 0
