"""A later attempt takes over from an earlier one that nobody waits for any more."""

from __future__ import annotations

from tests.core.driver import Driver, half, wide
from tidegate.core.decisions import Admit, Ask, Refuse
from tidegate.core.gate import Gate
from tidegate.core.reading import Reading


def test_supersede_needs_key_body_tenant_and_a_caller_that_left() -> None:
    """Only then is the earlier attempt told to stop; its lease ends when its app returns."""
    keyed = {"identity": "k", "is_keyed": True, "digest": b"body"}
    driver = Driver()
    first = driver.admit(**keyed)
    driver.admit(attempt=2, **keyed)
    assert driver.step.cancelled == ()
    driver.release(2)
    driver.gate.caller_gone(first.ticket, driver.now)
    for other in ({**keyed, "digest": b"other"}, {**keyed, "identity": "k2"}, {**keyed, "is_keyed": False}):
        driver.release(driver.admit(**other).ticket)
        assert driver.step.cancelled == ()
    driver.release(driver.admit("stranger", **keyed).ticket)
    assert driver.step.cancelled == ()
    driver.admit(attempt=2, **keyed)
    assert list(driver.step.cancelled) == [first.ticket]
    driver.admit(attempt=3, **keyed)
    assert not driver.step.cancelled, "once is enough"
    third = Driver()
    first = third.admit(**keyed)
    third.gate.caller_gone(first.ticket, third.now)
    third.admit(attempt=2, **keyed)
    assert third.step.cancelled == (first.ticket,)
    assert third.gate.statistics(third.now).running == 2


def test_supersede_past_the_declared_deadline() -> None:
    """A caller that said when it gives up has left by then."""
    keyed = {"identity": "k", "is_keyed": True, "digest": b"body"}
    driver = Driver()
    first = driver.admit(deadline_at=driver.now + 5, **keyed)
    driver.now += 6
    driver.admit(attempt=2, **keyed)
    assert driver.step.cancelled == (first.ticket,)


def test_keyed_request_without_a_body_to_compare_supersedes_nobody() -> None:
    """The key alone does not show that it is the same request."""
    gate = Gate(wide(), 0.0)
    gate.observe([Reading(kv_usage=0.0)], 0.0, half)
    first = Ask(ticket=1, tenant="t", priority_class="vip", prompt_tokens=1, identity="k", is_keyed=True)
    assert isinstance(gate.offer(first, 0.0, half).decision, Admit)
    gate.caller_gone(1, 0.0)
    again = Ask(ticket=2, tenant="t", priority_class="vip", prompt_tokens=1, identity="k", is_keyed=True)
    step = gate.offer(again, 0.0, half)
    assert not isinstance(step.decision, Refuse)
    assert step.cancelled == ()
