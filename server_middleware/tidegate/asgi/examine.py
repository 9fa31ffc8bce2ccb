"""A body, decoded once: its cost, and what the field policy makes of it.

Law of this file: unless the policy demands a change, nothing is changed.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tidegate.asgi.classify import Route
from tidegate.asgi.cost import Cost, at_least, cost_of, unparsed
from tidegate.asgi.decode import decode_body
from tidegate.asgi.fields import FieldPolicy, FieldProblem
from tidegate.asgi.plain import plain_cost
from tidegate.asgi.rewrite import rewrite

OFF_LOOP_BYTES = 256 * 1024  # a body larger than this is examined in a thread
MOST_CONTAINERS = 1_000_000  # lists and objects; each takes some twenty times the memory of its text
MOST_THREADS = 2  # decoding holds the interpreter's lock: more would gain nothing


class Examined(NamedTuple):
    """What a body holds. `data` is the rewritten body, `None` when it goes on as it came."""

    cost: Cost
    data: bytes | None = None


def examine(data: bytes, route: Route, policy: FieldPolicy) -> Examined:
    """Prices the body and applies the policy.

    Raises:
        FieldProblem: the policy forbids something the body asks for.
    """
    if len(data) > MOST_CONTAINERS and data.count(b"[") + data.count(b"{") > MOST_CONTAINERS:
        raise FieldProblem(f"The body holds more than {MOST_CONTAINERS} lists and objects.", "body")
    plain = plain_cost(data, route)
    if plain is not None:
        return Examined(plain)
    fields = decode_body(data)
    if fields is None:
        return Examined(unparsed(len(data)))
    cost = cost_of(fields, route)
    if cost.unparsed:
        cost = at_least(cost, len(data))
    changes = policy.changes(fields, cost)
    if not changes:
        return Examined(cost)
    if data.startswith(b"--"):  # a multipart form; the engines take no priority from one
        excess = next((change for change in changes if change.value is not None), None)
        if excess is not None:
            raise FieldProblem(
                f"'{excess.field}' may be at most {excess.value} here, and forms are not changed.",
                excess.field,
            )
        return Examined(cost)
    try:
        rewritten = rewrite(data, changes)
    except RecursionError:  # it could just be read; whoever nests so deep could else go round the policy
        field = changes[0].field
        raise FieldProblem(f"'{field}' is not allowed here in a body nested so deeply.", field) from None
    cost = cost_of(decode_body(rewritten) or fields, route)
    return Examined(at_least(cost, len(rewritten)) if cost.unparsed else cost, rewritten)


class Threads:
    """`examine`, in threads of our own, for large bodies (`OFF_LOOP_BYTES`).

    Those of the loop are the app's: one that fills them with work of its own would hold up our requests,
    before they are admitted and without bound.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="tidegate-bodies")

    async def examine(self, data: bytes, route: Route, policy: FieldPolicy) -> Examined:
        """As the function of that name, while the loop turns.

        Raises:
            FieldProblem: as there.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, examine, data, route, policy)
