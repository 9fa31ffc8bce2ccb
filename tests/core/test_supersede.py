"""A later attempt takes over from an earlier one that nobody waits for any more."""

from __future__ import annotations

from tests.core.driver import Driver


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
