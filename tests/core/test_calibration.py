"""What the measured level corrects: the share of prompts, foreign load, the margin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driver import Driver
from tests.core.leases import lease
from tidegate.core.calibration import Calibration
from tidegate.core.ledger import Ledger
from tidegate.core.options import GateOptions, KvOptions
from tidegate.core.reading import Reading


def covered(tenant_prompts: dict[str, float], seen: float = 0.0) -> Ledger:
    """A ledger of leases past their first token, one per tenant."""
    ledger = Ledger()
    for ticket, (tenant, prompt) in enumerate(tenant_prompts.items()):
        made = lease(ticket, prompt, 500)
        object.__setattr__(made.ask, "tenant", tenant)
        made.seen = seen
        made.refresh()
        ledger.add(made)
        ledger.mark_first_token(made, 0.0)
    return ledger


def read(usage: float, **reading: Any) -> Reading:
    """A reading of an engine of 10,000 tokens."""
    return Reading(kv_usage=usage, capacity_tokens=10_000, **reading)


def test_share_rises_at_once_and_falls_slowly_and_only_in_calm() -> None:
    """Too small an estimate is corrected by one reading; sharing is believed step by step."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"a": 4000.0})
    calibration.learn(read(0.6, running=1), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.5)
    calibration.learn(read(0.4, running=0, waiting=1, preemptions=0), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.5), "not while the engine queues"
    calibration.learn(read(0.4, running=1, preemptions=2), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.5), "nor when it preempts"
    calibration.learn(read(0.4, running=1), ledger, 1.0)
    assert calibration.kp == pytest.approx(1.35)
    calibration.learn(read(0.4, running=1), ledger, 0.1)
    assert 1.3 < calibration.kp < 1.35
    for _ in range(100):
        calibration.learn(read(0.0, running=1), ledger, 1.0)
    assert calibration.kp == pytest.approx(0.1)
    assert ledger.held_tokens() == pytest.approx(400)


def test_share_of_one_tenant_does_not_vouch_for_another() -> None:
    """A tenant of shared prompts, then a stranger with unique ones: the stranger is charged in full."""
    calibration = Calibration(KvOptions(), 100)
    for _ in range(60):
        calibration.learn(read(0.2, running=1), covered({"shared": 6000.0}), 1.0)
    assert calibration.share("shared") == pytest.approx(1 / 3, abs=0.02)
    assert calibration.share("stranger") == 1.0
    calibration.learn(read(0.4, running=2), covered({"shared": 6000.0, "stranger": 2000.0}), 1.0)
    assert calibration.share("stranger") == pytest.approx(1.0, abs=0.02)


def test_what_is_not_ours_is_foreign_and_explained_once() -> None:
    """More running than we sent: the excess is other doors', and our share stays as it was."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"a": 2000.0})
    calibration.learn(read(0.7, running=9), ledger, 1.0)
    assert calibration.foreign_tokens == pytest.approx(5000)
    assert calibration.kp == pytest.approx(1.0)
    calibration.learn(read(0.2, running=1), ledger, 1.0)
    assert calibration.foreign_tokens == 0.0
    calibration.learn(read(0.5), Ledger(), 1.0)
    assert calibration.foreign_tokens == pytest.approx(5000)
    calibration.learn(read(0.9), covered({"a": 2000.0}), 1.0)
    assert calibration.foreign_tokens == pytest.approx(5000), "beyond the clamp of the share"


def test_foreign_load_takes_its_part_of_the_capacity() -> None:
    """The ledger fits into what the others leave."""
    driver = Driver()
    driver.read(0.75, running=5)
    assert driver.instance.calibration.foreign_tokens == pytest.approx(750)
    driver.admit()
    driver.admit()
    driver.queue()


def test_unread_prompts_explain_no_surplus_and_books_ahead_teach_nothing() -> None:
    """A prompt in progress may be anywhere between nothing and all of it."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"a": 2000.0})
    unread = lease(9, 3000, 100)
    unread.first_token_at = None
    unread.refresh()
    ledger.add(unread)
    for usage in (0.2, 0.35, 0.5):
        calibration.learn(read(usage, running=2), ledger, 1.0)
        assert calibration.kp == pytest.approx(1.0)
    crowd = covered({str(number): 500.0 for number in range(10)})
    calibration.learn(read(0.1, running=2), crowd, 1.0)
    assert calibration.kp == pytest.approx(1.0)


def test_tiny_prompts_in_wide_blocks_say_nothing_of_others() -> None:
    """Twenty tokens take a whole block of 128: that would double the charge of every newcomer."""
    calibration = Calibration(KvOptions(), 100)
    ledger = covered({"vip": 21.0}, seen=1.0)
    for held in ledger.leases.values():
        held.pad = 64.0
        ledger.refresh(held)
    calibration.learn(read(0.0128, running=1), ledger, 1.0)
    assert calibration.share("newcomer") == 1.0
    assert calibration.foreign_tokens == 0.0
    calibration.learn(read(0.5), ledger, 1.0)
    assert calibration.share("newcomer") == 1.0
    assert calibration.foreign_tokens == pytest.approx(5000 - 86), "an engine that says not how many it runs"
    calibration.learn(read(0.0, running=1), ledger, 1.0)
    assert calibration.share("vip") == 1.0, "nor that they share blocks"
    several = covered({str(number): 300.0 for number in range(20)})
    for held in several.leases.values():
        held.pad = 64.0
        several.refresh(held)
    calibration.learn(read(0.88, running=20), several, 1.0)
    assert calibration.kp == pytest.approx((8800 - 20 * 64) / 6000)


def test_estimates_that_fall_raise_no_share_above_one() -> None:
    """A share that is still coming down from estimates that were too high is no proof of dense prompts."""
    calibration = Calibration(KvOptions(), 100)
    calibration.learn(read(0.2, running=1), covered({"a": 6000.0}), 1.0)
    assert calibration.share("a") == pytest.approx(0.8)
    calibration.restate("a", 1 / 3)
    assert calibration.share("a") == 1.0
    calibration.learn(read(0.6, running=1), covered({"a": 3000.0}), 1.0)
    calibration.restate("a", 0.5)
    assert calibration.share("a") == pytest.approx(2.0), "what was measured is not taken back"
    calibration.restate("a", 4.0)
    assert calibration.share("a") == pytest.approx(0.5)


def test_margin_answers_to_preemptions_once_per_bout_and_eases() -> None:
    """A counter that went down has restarted and says nothing."""
    calibration = Calibration(KvOptions(), 100)
    steps = [
        (0, 1.0, 0.048),
        (5, 1.0, 0.078),
        (9, 1.0, 0.078),
        (9, 5.0, 0.068),
        (12, 5.0, 0.098),
        (0, 1.0, 0.096),
    ]
    for preemptions, elapsed_s, margin in steps:
        calibration.learn(read(0.1, preemptions=preemptions), Ledger(), elapsed_s)
        assert calibration.margin == pytest.approx(margin)
    for _ in range(200):
        calibration.learn(read(0.1), Ledger(), 1.0)
    assert calibration.margin == 0.03


def test_shares_remembered_are_bounded() -> None:
    """A million tenants leave no more than the bound behind."""
    calibration = Calibration(KvOptions(), 5)
    for number in range(50):
        calibration.learn(read(0.6, running=1), covered({f"t{number}": 2000.0}), 1.0)
    assert len(calibration._shares) <= 5


def test_capacity_is_learnt_where_nobody_states_it() -> None:
    """Our own tokens over the level, after some samples; before that each lease counts as a share."""
    driver = Driver(GateOptions(kv=KvOptions(high_watermark=0.8, block_tokens=1)))
    driver.read(0.0)
    ticket = driver.admit(prompt_tokens=99.5, max_output_tokens=400).ticket
    driver.progress(ticket, 100)
    assert driver.instance.capacity is None
    for step in range(3):
        driver.now += 1.0
        driver.read(0.1, running=1, generation_tokens=step)
    assert driver.instance.capacity == pytest.approx(2000)


def test_capacity_configured_before_stated_before_learnt() -> None:
    """A value that is set always holds."""
    assert Calibration(KvOptions(capacity_tokens=7), 5).capacity(read(0.1)) == 7
    assert Calibration(KvOptions(), 5).capacity(read(0.1)) == 10_000
    assert Calibration(KvOptions(), 5).capacity(None) is None
