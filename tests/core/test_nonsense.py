"""What cannot be true is refused with its name, and changes nothing."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from tests.core.driver import FILL, Driver, half, small
from tidegate.core.decisions import Ask, InvalidAsk
from tidegate.core.reading import Reading, vouched_reading


def test_time_backwards_and_nonsense_change_nothing() -> None:
    """One clock; an operation in the past happens now; NaN does not move it."""
    driver = Driver(small())
    first = driver.admit(**FILL)
    second = driver.queue(latest_start_at=driver.now + 5.0, **FILL)
    for instant in (driver.now - 100, float("nan"), float("-inf"), float("inf")):
        driver.gate.advance(instant, half)
    assert driver.gate._now == driver.now
    assert driver.release(first.ticket) == [second.ticket]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e13])
@pytest.mark.parametrize("name", ["prompt_tokens", "max_output_tokens", "sequences", "body_bytes", "attempt"])
def test_absurd_figures_of_an_ask_are_refused_with_their_name(name: str, value: float) -> None:
    """The error names the field and the value, and nothing has changed."""
    driver = Driver()
    with pytest.raises(InvalidAsk, match=name):
        driver.offer(**cast("Any", {name: value}))
    assert driver.gate.statistics(driver.now).running == 0


def test_unknown_class_ticket_in_use_and_bad_progress_are_refused() -> None:
    """Typed errors; the books stay as they were."""
    driver = Driver()
    with pytest.raises(InvalidAsk, match="platinum"):
        driver.offer(priority_class="platinum")
    with pytest.raises(InvalidAsk, match="platinum"):
        driver.gate.precheck("t", "platinum", driver.now, half)
    driver.admit(ticket=7)
    with pytest.raises(InvalidAsk, match="7"):
        driver.offer(ticket=7)
    for tokens in (float("nan"), -1.0, float("inf")):
        with pytest.raises(InvalidAsk, match="output_tokens"):
            driver.gate.progress(7, tokens, driver.now)
    for name in ("latest_start_at", "deadline_at"):
        with pytest.raises(InvalidAsk, match=name):
            driver.offer(**cast("Any", {name: math.nan}))
    assert driver.gate.statistics(driver.now).running == 1


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("prompt_tokens", math.nan),
        ("attempt", 0),
        ("max_output_tokens", -1),
        ("latest_start_at", math.nan),
        ("deadline_at", math.nan),
    ],
)
def test_absurd_ask_is_told_which_figure_it_is(figure: str, value: float) -> None:
    """Whatever else is missing, the message names the culprit."""
    with pytest.raises(InvalidAsk, match=f"^{figure} is "):
        Ask(**{"ticket": 1, "tenant": "t", "priority_class": "c", "prompt_tokens": 1, figure: value})  # type: ignore[arg-type]


def test_vouched_reading_is_the_reading_of_its_figures() -> None:
    """One figure for each field, in their order."""
    figures: tuple[Any, ...] = (0.5, 1, 2, 3, 4, 5, 6, 7.0, 8.0, 9.0, 10, True, "x")
    fields: dict[str, Any] = dict(zip(Reading.__slots__, figures, strict=True))
    assert vouched_reading(figures) == Reading(**fields)
