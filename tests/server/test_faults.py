"""The fault policy: counted, bounded, loud, and it recovers."""

from __future__ import annotations

from tidegate.asgi.faults import PASS_THROUGH_S, TRIP_COUNT, TRIP_WINDOW_S, FaultPolicy, OnInternalError
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.testing import FakeClock


class Bed:
    """A policy with everything observable."""

    def __init__(self, on_internal_error: OnInternalError = "open", max_concurrency: int = 2) -> None:
        self.clock = FakeClock()
        self.events: list[AdmissionEvent] = []
        self.recoveries = 0
        self.policy = FaultPolicy(
            on_internal_error,
            max_concurrency,
            clock=self.clock,
            hook=self.events.append,
            on_recover=self._recover,
        )

    def _recover(self) -> None:
        self.recoveries += 1

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.policy.record("offer", RuntimeError("planted"))

    def kinds(self) -> list[tuple[EventKind, str]]:
        return [(event.kind, event.reason) for event in self.events]


def test_a_fault_is_counted_and_told_with_its_place_and_cause() -> None:
    """An operator reads where it happened and what it was."""
    bed = Bed()
    bed.fail(1)
    assert bed.policy.count == 1
    (event,) = bed.events
    assert (event.kind, event.reason) == (EventKind.FAULT, "offer")
    assert event.detail == "RuntimeError: planted"


def test_the_cause_of_a_wrapped_fault_is_told() -> None:
    """The wrapper's name would say nothing."""
    bed = Bed()
    wrapper = RuntimeError("offer")
    wrapper.__cause__ = KeyError("ledger")
    bed.policy.record("offer", wrapper)
    assert bed.events[0].detail == "KeyError: 'ledger'"


def test_open_lets_pass_up_to_the_bound() -> None:
    """A broken gate still has a local bound."""
    bed = Bed(max_concurrency=2)
    assert [bed.policy.try_pass() for _ in range(3)] == [True, True, False]
    bed.policy.passed()
    assert bed.policy.try_pass()


def test_closed_lets_nothing_pass_and_never_opens_by_itself() -> None:
    """Who asked for closed gets closed, however often the gate fails."""
    bed = Bed("closed")
    bed.fail(TRIP_COUNT * 3)
    assert not bed.policy.try_pass()
    assert not bed.policy.is_passing_through()


def test_faults_that_pile_up_open_the_gate_once_and_say_so() -> None:
    """The opening is one event, not one for each further fault."""
    bed = Bed()
    bed.fail(TRIP_COUNT - 1)
    assert not bed.policy.is_passing_through()
    bed.fail(3)
    assert bed.policy.is_passing_through()
    assert bed.kinds().count((EventKind.PASS_THROUGH, "opened")) == 1


def test_faults_far_apart_do_not_open_the_gate() -> None:
    """A fault a minute is a bug to read about, not an outage."""
    bed = Bed()
    for _ in range(TRIP_COUNT * 2):
        bed.fail(1)
        bed.clock.advance(TRIP_WINDOW_S / (TRIP_COUNT - 1) + 0.01)
    assert not bed.policy.is_passing_through()


def test_after_its_time_a_fresh_gate_is_tried_and_said() -> None:
    """Pass-through is a pause, not the end of admission control."""
    bed = Bed()
    bed.fail(TRIP_COUNT)
    bed.clock.advance(PASS_THROUGH_S - 0.01)
    assert bed.policy.is_passing_through()
    bed.clock.advance(0.02)
    assert not bed.policy.is_passing_through()
    assert bed.recoveries == 1
    assert bed.kinds()[-1] == (EventKind.PASS_THROUGH, "closed")


def test_a_gate_that_is_still_broken_opens_again() -> None:
    """The count starts anew after the pause."""
    bed = Bed()
    bed.fail(TRIP_COUNT)
    bed.clock.advance(PASS_THROUGH_S + 1)
    assert not bed.policy.is_passing_through()
    bed.fail(TRIP_COUNT)
    assert bed.policy.is_passing_through()
