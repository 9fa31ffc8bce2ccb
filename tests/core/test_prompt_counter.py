"""The engine's counter of prompt tokens, and what a cold gate makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driver import Driver, wide
from tests.core.leases import lease
from tidegate.core.decisions import Admit, Ending
from tidegate.core.instance import Instance
from tidegate.core.ledger import Ledger
from tidegate.core.options import GateOptions, KvOptions
from tidegate.core.prompt_counter import PromptCounter
from tidegate.core.prompts import PromptSizes
from tidegate.core.reading import Reading


def cold(**kv: Any) -> Driver:
    """A gate before 10,000 tokens that has read an idle engine."""
    driver = Driver(GateOptions(kv=KvOptions(capacity_tokens=10_000, **kv)))
    driver.read(0.0, prompt_tokens=100.0, generation_tokens=0.0, running=0)
    return driver


def read(driver: Driver, counted: float, generated: float = 2.0, running: int = 3) -> list[int]:
    """A reading a quarter of a second on, with so many prompt tokens counted since the idle one."""
    driver.now += 0.25
    return driver.read(
        0.3, prompt_tokens=100.0 + counted, generation_tokens=generated, running=running, waiting=0
    )


def estimate(driver: Driver, ascii_bytes: int = 3000) -> float:
    """Tokens that a stranger's prompt is charged."""
    return driver.gate.estimate_prompt_tokens("stranger", "m", ascii_bytes, 0)


def prompt(driver: Driver, **fields: Any) -> int:
    """One prompt of 3,000 bytes starts; its ticket."""
    fields = {"prompt_tokens": 1000, "ascii_bytes": 3000, "model": "m", "max_output_tokens": 50} | fields
    return driver.admit(**fields).ticket


def test_streams_teach_once_their_first_tokens_are_seen() -> None:
    """Two of three read: nothing is concluded; all read: the tokenizer's density is known."""
    driver = cold()
    tickets = [prompt(driver) for _ in range(3)]
    for ticket in tickets[:2]:
        driver.progress(ticket, 1)
    read(driver, 1200)
    assert estimate(driver) == pytest.approx(1500)
    driver.progress(tickets[2], 1)
    read(driver, 1800, 9)
    assert estimate(driver) == pytest.approx(1.05 * 1000 * (1800 + 750) / (3000 + 500), rel=0.01)


def test_whole_answers_teach_once_the_counter_rests() -> None:
    """Nothing shows that they were read, but engines read in order, and this one has stopped."""
    driver = cold()
    for _ in range(3):
        prompt(driver, streams=False)
    read(driver, 1200)
    read(driver, 1800, 3)
    assert estimate(driver) == pytest.approx(1500)
    read(driver, 1800, 30)
    assert estimate(driver) < 1100


@pytest.mark.parametrize("running", [2, 4])
def test_a_counter_that_rests_teaches_only_if_the_engine_knew_of_exactly_ours(running: int) -> None:
    """One still on its way was not read; one of somebody else's was counted too."""
    driver = cold()
    for _ in range(3):
        prompt(driver, streams=False)
    for generated in (2.0, 9.0, 30.0):
        read(driver, 1800, generated, running)
    assert estimate(driver) == pytest.approx(1500)


def test_prompts_that_were_never_read_teach_nothing() -> None:
    """Refused by the engine, or left before their first token: their bytes were not counted."""
    driver = cold()
    first = prompt(driver)
    driver.release(prompt(driver, streams=False), Ending.FAILED)
    driver.release(prompt(driver), Ending.ABANDONED)
    driver.progress(first, 1)
    read(driver, 1000, running=1)
    assert estimate(driver) == pytest.approx(1.05 * 1000 * (1000 + 750) / (1000 + 500), rel=0.01)


def test_prompts_of_known_size_are_taken_off_the_counter() -> None:
    """Token ids need no estimate, and say nothing of the text beside them."""
    driver = cold()
    for ticket in (prompt(driver), prompt(driver, ascii_bytes=0, prompt_tokens=700)):
        driver.progress(ticket, 1)
    read(driver, 700 + 500, running=2)
    assert estimate(driver) == pytest.approx(1.05 * 1000 * (500 + 750) / (1000 + 500), rel=0.01)


def test_gates_that_share_an_engine_learn_nothing_from_its_counter() -> None:
    """Whose prompts it has counted is not known."""
    driver = Driver(GateOptions(kv=KvOptions(capacity_tokens=10_000), processes=2))
    driver.read(0.0, prompt_tokens=0.0, running=0)
    driver.progress(prompt(driver), 1)
    read(driver, 2000, running=1)
    assert estimate(driver) == pytest.approx(1000)


def test_a_cold_burst_is_charged_with_care_and_what_waits_anew_once_the_truth_is_known() -> None:
    """Half as many start as the prior would let in; the rest as soon as prompts prove thin."""
    driver = cold()
    fields: dict[str, Any] = {
        "prompt_tokens": 1500,
        "ascii_bytes": 3000,
        "model": "m",
        "max_output_tokens": 100,
    }
    running, wanted = [], False
    for _ in range(12):
        decision = driver.offer(**fields)
        running += [decision.ticket] if isinstance(decision, Admit) else []
        wanted |= driver.step.wants_reading
    assert len(running) == 5
    assert wanted
    for ticket in running:
        driver.progress(ticket, 1)
    granted = read(driver, 5 * 600, 5.0, running=5)
    assert len(granted) >= 5


def test_next_to_nothing_unread_counts_by_half() -> None:
    """Of prompts that may or may not have been read, with text or without."""
    counter, ledger = PromptCounter(), Ledger()
    assert counter.take(Reading(kv_usage=0.0, prompt_tokens=0.0, running=0), ledger, 0.0) is None
    read, text, tokens = lease(1, 9, 9, ascii_bytes=1000), lease(2, 9, 9, ascii_bytes=50), lease(3, 20, 9)
    for item in (read, text, tokens):
        item.first_token_at = 0.5 if item is read else None
        ledger.add(item)
        counter.started(item)
    counted = counter.take(Reading(kv_usage=0.0, prompt_tokens=500.0, running=3), ledger, 1.0)
    assert counted is not None
    assert counted.tokens == 500.0 - 10.0
    assert counted.texts == {"": (1025.0, 0.0)}


def test_tenant_with_prompts_of_its_own_keeps_its_share() -> None:
    """What all prompts of a model held restates only the shares of those it stands in for."""
    instance, sizes = Instance("default", wide()), PromptSizes(4.0)
    sizes.learn("known", "", 400, 0, 100)
    instance.calibration._shares.update(known=0.5, stranger=0.5)
    instance.learn_prompts(Reading(kv_usage=0.0, prompt_tokens=0.0, running=0), sizes, 0.0)
    instance.start(lease(1, 9, 9, ascii_bytes=4000), 0.0)
    instance.learn_prompts(Reading(kv_usage=0.0, prompt_tokens=2000.0, running=1), sizes, 1.0)
    assert instance.calibration.share("known") == 0.5
    assert instance.calibration.share("stranger") < 0.5
