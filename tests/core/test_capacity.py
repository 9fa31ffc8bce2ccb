"""The capacity an engine states, against the one its level goes by."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.core.driver import Driver, half, wide
from tidegate.core.capacity import StatedCapacity
from tidegate.core.reading import Reading

STATED = 10_000
BLOCK = 16


class Engine:
    """An engine in which some requests generate; its blocks are whole, and its gauge may lag."""

    def __init__(
        self, capacity: float, *, sequences: int = 20, gauge_every: int = 1, block: int = BLOCK
    ) -> None:
        self.capacity, self.block, self.gauge_every = capacity, block, gauge_every
        self.lengths = [100 + 7 * number for number in range(sequences)]
        self.generated, self.prompts = 0, 2_000
        self.preemptions, self.waiting, self.steps = 0, 0, 0
        self.level = 0.0
        self.step(1)

    def step(self, steps: int) -> None:
        """Every sequence gets so many tokens."""
        for _ in range(steps):
            self.lengths = [length + 1 for length in self.lengths]
            self.generated += len(self.lengths)
            self.steps += 1
            if self.steps % self.gauge_every == 0:
                blocks = sum(-(-length // self.block) for length in self.lengths)
                self.level = min(1.0, blocks * self.block / self.capacity)

    def reading(self, **changed: Any) -> Reading:
        """What it says now."""
        figures: dict[str, Any] = {
            "kv_usage": self.level,
            "running": len(self.lengths),
            "waiting": self.waiting,
            "prompt_tokens": float(self.prompts),
            "generation_tokens": float(self.generated),
            "preemptions": float(self.preemptions),
            "capacity_tokens": STATED,
            "block_tokens": self.block,
        }
        return Reading(**{**figures, **changed})


def watch(engine: Engine, readings: int, steps: int = 15, *, is_settled: bool = True) -> StatedCapacity:
    """Read it so often."""
    made = StatedCapacity()
    for _ in range(readings):
        made.take(engine.reading(), is_settled=is_settled)
        engine.step(steps)
        if engine.level > 0.9:
            engine.lengths = [length % 100 + 1 for length in engine.lengths]  # as if they had begun anew
            engine.prompts += 2_000
    return made


@pytest.mark.parametrize("true", [10_000, 9_000, 11_500])
@pytest.mark.parametrize("gauge_every", [1, 40])
def test_an_engine_that_is_about_right_is_believed(true: float, gauge_every: int) -> None:
    """Rounding to blocks and a gauge that is renewed every 40 steps raise no alarm."""
    made = watch(Engine(true, gauge_every=gauge_every), 400)
    assert not made.is_disputed
    assert made.in_force(STATED) == STATED
    assert made.learnt == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("gauge_every", [1, 40])
def test_a_capacity_stated_too_large_is_corrected_soon(gauge_every: int) -> None:
    """Half of what is stated: a handful of risen levels are enough."""
    made = watch(Engine(5_000, gauge_every=gauge_every), 30 * gauge_every)
    assert made.is_disputed
    assert made.in_force(STATED) == pytest.approx(5_000, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_rounding_to_large_blocks_in_step_is_no_dispute(seed: int) -> None:
    """A dozen sequences that cross the edges of blocks of 128 tokens together, read at any moment."""
    random_ = random.Random(seed)
    engine = Engine(STATED, sequences=12, block=128)
    made = StatedCapacity()
    for _ in range(40):
        engine.lengths = [
            random_.randint(1, 200) + extra for extra in sorted(random_.choices(range(60), k=12))
        ]
        engine.prompts += 1
        for _ in range(random_.randint(2, 12)):
            engine.step(random_.randint(3, 20))
            made.take(engine.reading(), is_settled=True)
            assert not made.is_disputed


def test_a_gauge_behind_its_counter_is_waited_for() -> None:
    """Many short rows of readings, each beginning between two renewals of the gauge."""
    engine, made = Engine(STATED, sequences=40, gauge_every=40, block=1), StatedCapacity()
    for turn in range(30):
        engine.lengths = [10] * 40
        engine.prompts += 1
        engine.step(turn % 40)
        for _ in range(14):
            engine.step(7)
            made.take(engine.reading(), is_settled=True)
            assert not made.is_disputed
    assert made.learnt == pytest.approx(STATED, rel=0.02)


def test_a_capacity_stated_too_small_takes_four_times_the_evidence() -> None:
    """Believing in room that is not there makes the engine preempt."""
    few, many = watch(Engine(20_000), 20), watch(Engine(20_000), 60)
    assert few.learnt == pytest.approx(20_000, rel=0.05)
    assert (few.is_disputed, few.in_force(STATED)) == (False, STATED)
    assert many.is_disputed
    assert many.in_force(STATED) == pytest.approx(20_000, rel=0.05)


def test_the_dispute_ends_when_the_engine_states_another_figure() -> None:
    """Within 15 % of what is measured the stated one counts again; in between nothing changes."""
    engine = Engine(5_000)
    made = watch(engine, 30)
    for stated, disputed in ((6_000, True), (5_500, False), (6_000, False), (9_000, True)):
        engine.lengths = [1] * 20
        for _ in range(12):
            made.take(engine.reading(capacity_tokens=stated), is_settled=True)
            engine.step(10)
        assert made.is_disputed is disputed, stated


@pytest.mark.parametrize("stated", [2_000, 100_000])
@pytest.mark.parametrize("was_disputed", [False, True])
def test_an_engine_that_is_restarted_is_not_judged_by_the_one_before(stated: int, was_disputed: bool) -> None:
    """With another share of the memory it has another capacity, and says so; too much of it would preempt."""
    engine = Engine(5_000 if was_disputed else STATED)
    made = watch(engine, 80)
    assert made.is_disputed is was_disputed
    engine.__init__(stated)  # type: ignore[misc]
    for _ in range(60):
        made.take(engine.reading(capacity_tokens=stated), is_settled=True)
        assert made.in_force(stated) == stated
        engine.step(2 if stated < STATED else 50)
        if engine.level > 0.9:
            engine.lengths = [1] * 20
            engine.prompts += 2_000
    assert made.learnt == pytest.approx(stated, rel=0.05)


@pytest.mark.parametrize(
    "disturb",
    ["prompt", "preemption", "waiting", "start and end", "unsettled", "no counter", "no prompt counter"],
)
def test_nothing_is_learnt_while_anything_else_moves(disturb: str) -> None:
    """A level that rises by prompts as well says nothing of the capacity."""
    engine, made = Engine(5_000), StatedCapacity()
    for turn in range(60):
        hidden = {"no counter": "generation_tokens", "no prompt counter": "prompt_tokens"}.get(disturb)
        made.take(engine.reading(**({hidden: None} if hidden else {})), is_settled=disturb != "unsettled")
        engine.step(10)
        engine.lengths = [length % 240 for length in engine.lengths]
        engine.prompts += 100 if disturb == "prompt" else 0
        engine.preemptions += disturb == "preemption"
        engine.waiting = int(disturb == "waiting")
        if disturb == "start and end":
            engine.lengths = engine.lengths[:-1] if turn % 2 else [*engine.lengths, 500]
    assert made.learnt is None
    assert not made.is_disputed


def test_too_little_is_no_evidence() -> None:
    """A few tokens in a large cache are rounding."""
    made = watch(Engine(100_000_000), 200)
    assert made.learnt is None


@pytest.mark.parametrize("configured", [None, 8_000])
def test_the_gate_goes_by_what_the_engine_s_counters_say(configured: int | None) -> None:
    """Six requests fill what was stated to be twice as large; a capacity that was set is left alone."""
    driver = Driver(wide(capacity_tokens=configured, high_watermark=0.95))
    driver.read(0.0, running=0, capacity_tokens=STATED)
    engine = Engine(5_000, sequences=6, block=1)
    engine.lengths = [10] * 6
    tickets = [driver.admit(max_output_tokens=900).ticket for _ in range(6)]
    for turn in range(40):
        driver.now += 0.5
        engine.step(15)
        for ticket in tickets:
            driver.progress(ticket, 15 * (turn + 1))
        reading = engine.reading(kv_usage=sum(engine.lengths) / 5_000)
        driver.step = driver.gate.observe([reading], driver.now, half)
    (row,) = driver.gate.statistics(driver.now).instances
    assert row.stated_capacity_tokens == STATED
    assert row.learnt_capacity_tokens == pytest.approx(5_000, rel=0.05)
    assert row.capacity_disputed is (configured is None)
    assert row.capacity_tokens == (configured or pytest.approx(5_000, rel=0.05))
