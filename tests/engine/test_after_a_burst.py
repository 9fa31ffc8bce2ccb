"""Right after a burst, however it ended, four long answers that are not streamed all run together.

Half of the cache is enough for them, so one that has to wait for another tells of a lease that outlived its
request, or of a level that was not believed to have fallen. On failure the gate's state is printed.
"""

from __future__ import annotations

import subprocess
import time

import pytest

from benchmarks.engine_bed import Engine
from tests.engine.load import Job, Outcome, collect, start
from tests.engine.watch import TURNS, assert_no_lease_is_left, at_the_gate, eventually, state

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

LONG = [Job(words=5, output_tokens=2000, stream=False) for _ in range(4)]


def burst(end: str) -> list[Job]:
    """More than the cache holds; where it is hung up on, minutes of work, so that it does not end before."""
    words, output_tokens, callers = (200, 400, 48) if end == "answered" else (200, 1600, 150)
    stream = end == "hung up on streams"
    return [Job(words=words, output_tokens=output_tokens, stream=stream) for _ in range(callers)]


def hang_up(process: subprocess.Popen[str], engine: Engine) -> None:
    """All callers at once, while some run and others wait at the gate."""

    def is_full() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the load ended by itself, with {process.returncode}")
        return (
            engine.metric("vllm:num_requests_running") > 0 and engine.metric("tidegate_queued_requests") > 0
        )

    try:
        eventually(engine, "some run and some wait", is_full)
    finally:
        process.kill()
        process.communicate()


def ran_together(outcomes: list[Outcome]) -> bool:
    """Whether the last to start had started before the first to end: an order of events, not a speed."""
    started_s = [outcome.admitted_s for outcome in outcomes if outcome.admitted_s is not None]
    return len(started_s) == len(outcomes) and max(started_s) < min(each.total_s for each in outcomes)


@pytest.mark.parametrize("end", ["answered", "hung up on streams", "hung up on whole answers"])
def test_four_long_answers_all_run_right_after_a_burst(gated: Engine, end: str) -> None:
    """All are answered, and none waited for another of them."""
    process = start(gated.url, burst(end))
    if end == "answered":
        assert all(outcome.statuses[-1:] == [200] for outcome in collect(process).outcomes)
    else:
        hang_up(process, gated)
    long = start(gated.url, LONG)
    seen: list[str] = []
    idle = most_idle = 0
    while long.poll() is None:
        running, (held, queued) = gated.metric("vllm:num_requests_running"), at_the_gate(gated)
        seen.append(f"{running:.0f} run, {held} leases, {queued} queued")
        idle = idle + 1 if queued and not running else 0
        most_idle = max(most_idle, idle)
        time.sleep(0.1)
    outcomes = collect(long).outcomes
    shown = "\n".join([*map(str, outcomes), *seen])
    print(f"\n{shown}")
    for outcome in outcomes:
        assert (outcome.failure, outcome.statuses[-1:]) == (None, [200]), f"{shown}\n{state(gated)}"
        assert outcome.completion_tokens == LONG[0].output_tokens
    assert ran_together(outcomes), f"{shown}\n{state(gated)}"
    assert most_idle < TURNS, f"they were kept from an idle engine\n{shown}\n{state(gated)}"
    assert_no_lease_is_left(gated)
