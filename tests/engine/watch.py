"""Waits until something holds, and tells the gate's state when it never does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx

from benchmarks.engine_bed import READ_S, Engine

SHOWN = ("vllm:num_", "vllm:kv_", "tidegate_")
TURNS = 20  # requests one after the other; each waits for its turn in the server's loop
NEVER_S = 600.0  # no measure of anything: what has not come by then is not coming


def eventually(engine: Engine, what: str, condition: Callable[[], bool], timeout_s: float = NEVER_S) -> None:
    """Returns when `condition` holds.

    Raises:
        AssertionError: it does not within `timeout_s`; the message holds the engine's and the gate's state.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}\n{state(engine)}")
        time.sleep(0.1)


def state(engine: Engine) -> str:
    """The engine's gauges, the gate's figures and its operator's page as text, as far as they can be had."""
    try:
        page = httpx.get(f"{engine.url}/metrics", timeout=READ_S).text
        lines = [
            line for line in page.splitlines() if line.startswith(("vllm:num_", "vllm:kv_", "tidegate_"))
        ]
        lines = [line for line in page.splitlines() if line.startswith(SHOWN)]
        lines = [line for line in lines if "_bucket{" not in line and "_created" not in line]
        shown = httpx.get(f"{engine.url}/tidegate/state.json?history=0", timeout=READ_S)
        if shown.is_success:
            lines.append(json.dumps(shown.json(), indent=1))
    except (httpx.HTTPError, ValueError) as error:
        lines = [f"no state: {error!r}"]
    return "\n".join([*lines, *engine.log.read_text().splitlines()[-20:]])


def at_the_gate(engine: Engine) -> tuple[int, int]:
    """How many requests hold a lease and how many wait, at this moment.

    Raises:
        httpx.HTTPError: the operator's page did not come.
    """
    answer = httpx.get(f"{engine.url}/tidegate/state.json?history=0", timeout=READ_S)
    shown = answer.raise_for_status().json()
    return shown["running"], shown["queued"]


def assert_no_lease_is_left(engine: Engine) -> None:
    """Once the engine is idle; what has ended needs a few turns of the server's loop, however long they take.

    Raises:
        AssertionError: a lease has outlived the work it stood for.
    """
    engine.wait_idle()
    for _ in range(TURNS):
        httpx.get(f"{engine.url}/health", timeout=READ_S)
    assert at_the_gate(engine) == (0, 0), state(engine)
