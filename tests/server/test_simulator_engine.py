"""The simulated scheduler: blocks are conserved, work ends, preemption recomputes, cancellation frees."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.testing import EngineOptions, EngineSimulator

SMALL = EngineOptions(
    num_blocks=9,  # 8 of them are handed out
    block_tokens=4,
    max_sequences=4,
    max_batched_tokens=16,
    max_model_tokens=32,
    step_s=1.0,
    prefill_s_per_token=0.01,
    decode_s_per_sequence=0.001,
)


def run(engine: EngineSimulator, now_s: float = 0.0) -> tuple[float, list[object]]:
    """Steps until nothing is left; the end and the order in which requests finished."""
    finished: list[object] = []
    for _ in range(10_000):
        if not engine.has_work:
            return now_s, finished
        report = engine.step(now_s)
        now_s = report.ends_at_s
        finished += report.finished
    raise AssertionError("the engine does not come to an end")


def test_a_lone_request_takes_one_step_for_each_token() -> None:
    """Prefill yields the first token; each decode step yields one more and costs what the options say."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=8, output_tokens=3)
    first = engine.step(0.0)
    assert first.advanced == ["a"]
    assert first.ends_at_s == pytest.approx(1.08)
    second = engine.step(first.ends_at_s)
    assert second.ends_at_s - first.ends_at_s == pytest.approx(1.001)
    third = engine.step(second.ends_at_s)
    assert third.finished == ["a"]
    assert not engine.has_work
    assert engine.stats().kv_usage == 0.0
    assert (engine.stats().prompt_tokens, engine.stats().generation_tokens) == (8, 3)


def test_an_idle_step_takes_no_time() -> None:
    """Nothing to do: the report is empty and ends when it began."""
    report = EngineSimulator(SMALL).step(5.0)
    assert report.ends_at_s == 5.0
    assert not report.advanced


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    """A prompt above the step's budget needs several steps before its first token."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=20, output_tokens=1)
    assert engine.step(0.0).advanced == []
    assert engine.step(1.0).advanced == ["a"]


def test_the_sequence_admitted_last_is_preempted_and_computed_again() -> None:
    """Out of blocks, the newest gives way, returns first, and its prefill is paid a second time."""
    engine = EngineSimulator(SMALL)
    engine.submit("old", prompt_tokens=15, output_tokens=10)
    engine.submit("new", prompt_tokens=12, output_tokens=10)
    engine.submit("later", prompt_tokens=16, output_tokens=2)
    reports = [engine.step(float(i)) for i in range(5)]
    assert [report.preempted for report in reports if report.preempted] == [["new"]]
    assert engine.stats().preemptions == 1
    assert (engine.stats().running, engine.stats().waiting) == (1, 2)
    _, finished = run(engine)
    assert finished == ["old", "new", "later"]
    assert engine.stats().prompt_tokens == 15 + 12 + 16  # counted once each
    assert engine.stats().generation_tokens == 10 + 10 + 2


def test_a_sequence_that_is_itself_the_last_gives_way_itself() -> None:
    """The older one keeps decoding when the newest is the one that needs a block."""
    engine = EngineSimulator(SMALL)
    engine.submit("old", prompt_tokens=14, output_tokens=16)
    engine.submit("new", prompt_tokens=16, output_tokens=16)
    engine.step(0.0)
    engine.step(1.0)
    report = engine.step(2.0)
    assert report.preempted == ["new"]
    assert report.advanced == ["old"]


def test_the_first_that_does_not_fit_blocks_those_behind_it() -> None:
    """Admission is first come first served, as in vLLM."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=16, output_tokens=8)
    engine.step(0.0)
    engine.submit("big", prompt_tokens=24, output_tokens=1)
    engine.submit("small", prompt_tokens=1, output_tokens=1)
    engine.step(1.0)
    assert engine.stats().running == 1
    assert run(engine)[1] == ["a", "big", "small"]


def test_seats_are_bounded() -> None:
    """No more than max_sequences run at once."""
    engine = EngineSimulator(SMALL)
    for number in range(6):
        engine.submit(number, prompt_tokens=1, output_tokens=2)
    engine.step(0.0)
    assert (engine.stats().running, engine.stats().waiting) == (4, 2)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelling_frees_the_blocks_at_once(steps: int) -> None:
    """Waiting or running, a cancelled request leaves nothing behind."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=8, output_tokens=9)
    for step in range(steps):
        engine.step(float(step))
    assert engine.cancel("a")
    assert not engine.cancel("a")
    assert not engine.has_work
    assert engine.stats().kv_usage == 0.0
    assert engine.stats().cancelled_requests == 1


def test_equal_prefixes_share_blocks_and_are_computed_once() -> None:
    """The second holder of a prefix takes no blocks for it and skips its prefill."""
    engine = EngineSimulator(SMALL)
    prefix = ("p1", "p1p2")
    engine.submit("a", prompt_tokens=12, output_tokens=4, prefix=prefix)
    first = engine.step(0.0)
    used = engine.stats().kv_usage
    engine.submit("b", prompt_tokens=12, output_tokens=4, prefix=prefix)
    second = engine.step(first.ends_at_s)
    assert engine.stats().kv_usage * 8 == pytest.approx(used * 8 + 2)  # a's 4th block and b's own 3rd
    assert second.ends_at_s - first.ends_at_s == pytest.approx(1.0 + 4 * 0.01 + 0.001)
    assert engine.stats().prefix_hit_tokens == 8


def test_an_idle_prefix_is_found_again() -> None:
    """While nobody needed its place, a block outlives its last holder."""
    engine = EngineSimulator(SMALL)
    for name in ("a", "b"):
        engine.submit(name, prompt_tokens=9, output_tokens=1, prefix=("p1", "p1p2"))
        run(engine)
    assert engine.stats().prefix_hit_tokens == 8


def test_an_idle_prefix_counts_as_free_and_is_dropped_for_new_work() -> None:
    """A cached block nobody holds never stands in the way, and is gone once its place was needed."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=9, output_tokens=1, prefix=("p1", "p1p2"))
    run(engine)
    assert engine.stats().kv_usage == 0.0
    engine.submit("full", prompt_tokens=31, output_tokens=1)
    run(engine)
    engine.submit("b", prompt_tokens=9, output_tokens=1, prefix=("p1", "p1p2"))
    run(engine)
    assert engine.stats().prefix_hit_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "output", "prefix", "word"),
    [
        (0, 1, (), "prompt_tokens=0"),
        (1, 0, (), "output_tokens=0"),
        (30, 3, (), "max_model_tokens=32"),
        (3, 1, ("x",), "prefix"),
    ],
)
def test_impossible_requests_are_refused(
    prompt: int, output: int, prefix: tuple[str, ...], word: str
) -> None:
    """The error names the field and the value."""
    with pytest.raises(ValueError, match=word):
        EngineSimulator(SMALL).submit("a", prompt_tokens=prompt, output_tokens=output, prefix=prefix)


def test_a_request_id_cannot_be_used_twice_at_once() -> None:
    """Two live requests of one name would be one."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=1, output_tokens=2)
    with pytest.raises(ValueError, match="in use"):
        engine.submit("a", prompt_tokens=1, output_tokens=2)


@pytest.mark.parametrize(
    "fields",
    [{"num_blocks": 0}, {"step_s": float("nan")}, {"prefill_s_per_token": -1.0}, {"num_blocks": 100}],
)
def test_impossible_options_are_refused(fields: dict[str, float]) -> None:
    """Zero, NaN, negative, and a cache smaller than the longest request."""
    with pytest.raises(ValueError, match=next(iter(fields))):
        EngineOptions(**fields)  # type: ignore[arg-type]


def test_the_reading_is_what_a_probe_would_see() -> None:
    """Usage, queue, capacity and counters, ready for a gate."""
    engine = EngineSimulator(SMALL)
    engine.submit("a", prompt_tokens=8, output_tokens=9)
    engine.step(0.0)
    reading = engine.reading()
    assert (reading.running, reading.waiting, reading.capacity_tokens) == (1, 0, 36)
    assert reading.kv_usage == pytest.approx(2 / 8)
    assert reading.generation_tokens == 1


REQUESTS = st.lists(
    st.tuples(st.integers(1, 24), st.integers(1, 8), st.integers(0, 6), st.sampled_from("xyz")), max_size=30
)


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS, seed=st.integers(0, 2**32), cancel_share=st.floats(0, 0.5))
def test_blocks_are_conserved_and_every_request_ends(
    requests: list[tuple[int, int, int, str]], seed: int, cancel_share: float
) -> None:
    """Whatever comes and goes: no more blocks in use than there are, none left at the end, all work done."""
    uniform = random.Random(seed).random
    engine = EngineSimulator(SMALL)
    pending = list(enumerate(requests))
    alive: set[object] = set()
    expected = cancelled = 0
    now_s = 0.0
    while pending or engine.has_work:
        if pending and uniform() < 0.5:
            number, (prompt, output, shared, name) = pending.pop()
            prefix = tuple(f"{name}{block}" for block in range(min(shared, prompt // 4)))
            engine.submit(number, prompt_tokens=prompt, output_tokens=output, prefix=prefix)
            alive.add(number)
            expected += 1
        if alive and uniform() < cancel_share:
            gone = alive.pop()
            assert engine.cancel(gone)
            cancelled += 1
        report = engine.step(now_s)
        now_s = report.ends_at_s
        alive -= set(report.finished)
        assert 0.0 <= engine.stats().kv_usage <= 1.0
        assert engine.stats().running <= SMALL.max_sequences
    assert engine.stats().kv_usage == 0.0
    assert engine.stats().finished_requests == expected - cancelled


def test_equal_input_gives_equal_output() -> None:
    """Two runs of one script agree in every report."""
    runs = []
    for _ in range(2):
        engine, uniform, reports, now_s = EngineSimulator(SMALL), random.Random(7), [], 0.0
        for number in range(40):
            engine.submit(number, prompt_tokens=uniform.randint(1, 20), output_tokens=uniform.randint(1, 12))
        while engine.has_work:
            reports.append(engine.step(now_s))
            now_s = reports[-1].ends_at_s
        runs.append(reports)
    assert runs[0] == runs[1]
    assert sum(len(report.preempted) for report in runs[0]) > 0
