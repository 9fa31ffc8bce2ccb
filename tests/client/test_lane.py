"""The pure lane: who may go when, after a server has refused."""

from __future__ import annotations

import itertools
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tidegate_client.core.lane import Lane, Ticket

HALF = 0.5


def lane_refused(now: float, wait_s: float, *, waiting: int = 0, uniform: float = HALF) -> Lane:
    """A lane that was refused at `now` for `wait_s`, with callers waiting in order of arrival."""
    lane = Lane(slow_start=8)
    lane.refused(None, now, now + wait_s, 1.0, 16.0, uniform)
    for order in range(waiting):
        lane.enter(Ticket(order))
    return lane


def drain(lane: Lane, now: float, until: float, *, let_in: bool = True, uniform: float = HALF) -> list[float]:
    """The instants at which callers leave up to `until`, every attempt let in at once if so asked."""
    left: list[float] = []
    while (wake_at := lane.wake_at()) is not None and max(now, wake_at) <= until:
        now = max(now, wake_at)
        for ticket in lane.advance(now, lambda: uniform):
            left.append(now)
            if let_in:
                lane.let_in(ticket, now)
    return left


def test_open_until_refused() -> None:
    """A lane holds nobody before the first refusal, and nobody ten seconds after the last pause."""
    lane = Lane(slow_start=8)
    assert lane.is_open(0.0)

    lane.refused(None, 0.0, 3.0, 1.0, 16.0, HALF)
    assert not lane.is_open(2.0)
    assert not lane.is_open(12.9)
    assert lane.is_open(13.0)


def test_one_caller_leaves_after_the_floor_plus_its_draw() -> None:
    """Alone, the caller leaves at the floor plus the drawn share of the range."""
    assert drain(lane_refused(100.0, 3.0, waiting=1, uniform=0.25), 100.0, 200.0) == [103.25]


def test_later_never_shortens() -> None:
    """A refusal that names an earlier time leaves the later one standing."""
    lane = lane_refused(100.0, 60.0, waiting=1)
    lane.refused(None, 101.0, 102.0, 1.0, 16.0, HALF)

    assert lane.quiet_until == 160.0
    assert drain(lane, 101.0, 300.0)[0] >= 160.0


def test_the_range_doubles_with_each_refusal_in_a_row_and_shrinks_after_success() -> None:
    """1 s, 2 s, 4 s of jitter while nothing is let in; 1 s again after something was."""
    lane = Lane(slow_start=8)
    now, spreads = 0.0, []
    for _ in range(3):
        lane.refused(None, now, now + 1.0, 1.0, 16.0, HALF)
        lane.enter(Ticket(1))
        (left,) = drain(lane, now, now + 60.0, let_in=False)
        spreads.append(left - now - 1.0)
        now = left + 0.01
    lane.let_in(None, now)
    lane.refused(None, now, now + 1.0, 1.0, 16.0, HALF)
    lane.enter(Ticket(1))
    spreads.append(drain(lane, now, now + 60.0)[0] - now - 1.0)

    assert spreads == pytest.approx([0.5, 1.0, 2.0, 0.5])


def test_the_jitter_survives_its_cap() -> None:
    """After any number of refusals the range is the cap, and draws still spread over all of it."""
    lane = Lane(slow_start=8)
    now = 0.0
    for _ in range(40):
        lane.refused(None, now, now + 1.0, 1.0, 16.0, 0.75)
        lane.enter(Ticket(1))
        (now,) = drain(lane, now, now + 60.0, let_in=False)
    lane.refused(None, now, now + 1.0, 1.0, 16.0, 0.75)
    lane.enter(Ticket(1))

    assert drain(lane, now, now + 60.0) == [pytest.approx(now + 1.0 + 12.0)]


def test_the_first_of_many_comes_like_the_first_of_as_many_strangers() -> None:
    """With n callers waiting, the first leaves at the least of n draws, not at one draw."""
    first = [
        drain(lane_refused(0.0, 1.0, waiting=100, uniform=u / 100), 0.0, 9.0)[0] - 1.0 for u in range(100)
    ]

    assert sum(first) / len(first) == pytest.approx(1 / 101, rel=0.2)


def test_order_of_arrival() -> None:
    """Who called first leaves first, whatever the order of entering."""
    lane = lane_refused(0.0, 1.0)
    tickets = [Ticket(order) for order in (5, 1, 3)]
    for ticket in tickets:
        lane.enter(ticket)
    gone: list[int] = []
    while (wake_at := lane.wake_at()) is not None:
        gone += [ticket.order for ticket in lane.advance(wake_at, lambda: HALF)]

    assert gone == [1, 3, 5]


def test_few_at_first() -> None:
    """Until outcomes are known no more than the slow-start window is under way; within a second, that is."""
    left = drain(lane_refused(0.0, 1.0, waiting=100), 0.0, 2.0, let_in=False)

    assert len(left) == 8


def test_half_as_many_after_each_pause_in_a_row() -> None:
    """8, 4, 2, 1, 1: a server that lets nobody in is asked by fewer."""
    lane = lane_refused(0.0, 1.0, waiting=100)
    now, asked = 0.0, []
    for _ in range(5):
        tickets: list[Ticket] = []
        until = float("inf")
        while (wake_at := lane.wake_at()) is not None and max(now, wake_at) < until:
            now = max(now, wake_at)
            tickets += lane.advance(now, lambda: HALF)
            until = min(until, now + 0.9)
        asked.append(len(tickets))
        for ticket in tickets:
            lane.refused(ticket, now, now + 1.0, 1.0, 16.0, HALF)

    assert asked == [8, 4, 2, 1, 1]


def test_the_pace_is_what_the_server_showed() -> None:
    """20 let in and a pause of one second: the next leave about 50 ms apart, none closer than three quarters
    of it.
    """
    lane = Lane(slow_start=8)
    for _ in range(20):
        lane.let_in(None, 0.0)
    lane.refused(None, 0.0, 1.0, 1.0, 16.0, HALF)
    for order in range(200):
        lane.enter(Ticket(order))
    draws = random.Random(1)
    left: list[float] = []
    while len(left) < 40 and (wake_at := lane.wake_at()) is not None:
        for ticket in lane.advance(wake_at, draws.random):
            left.append(wake_at)
            lane.let_in(ticket, wake_at)
    gaps = [b - a for a, b in itertools.pairwise(left)]

    assert min(gaps) >= 0.75 * 0.05 / 2 ** (2 / 5)
    assert 20 <= 39 / (left[-1] - left[0]) <= 27


def test_whoever_leaves_the_line_holds_up_nobody() -> None:
    """A cancelled head gives way; a cancelled attempt frees its place in the window."""
    lane = lane_refused(0.0, 1.0)
    first, second = Ticket(1), Ticket(2)
    lane.enter(first)
    lane.enter(second)
    lane.leave(first)

    assert lane.head() is second
    assert lane.waiting == 1
    assert lane.advance(3.0, lambda: HALF) == [second]
    lane.leave(second)
    assert lane.wake_at() is None


def releases(lane: Lane, late_s: list[float]) -> list[float]:
    """When callers leave if the timer of each is late by the next of `late_s`; every attempt is let in."""
    left: list[float] = []
    for late in late_s:
        wake_at = lane.wake_at()
        assert wake_at is not None
        now = wake_at + late
        for ticket in lane.advance(now, lambda: HALF):
            left.append(now)
            lane.let_in(ticket, now)
    return left


def test_late_timers_do_not_slow_the_line_down() -> None:
    """With timers that are all 10 ms late the line moves as fast as with exact ones."""
    exact = releases(lane_refused(0.0, 1.0, waiting=100), [0.0] * 50)
    late = releases(lane_refused(0.0, 1.0, waiting=100), [0.01] * 50)

    assert late[-1] - late[0] == pytest.approx(exact[-1] - exact[0], rel=0.02)


def test_a_stalled_loop_is_not_made_up_for() -> None:
    """After two seconds in which nobody could leave, nobody leaves in a burst: half a gap is forgiven."""
    left = releases(lane_refused(0.0, 1.0, waiting=100), [0.0] * 10 + [2.0] + [0.0] * 10)
    gaps = [later - earlier for earlier, later in itertools.pairwise(left)]

    assert gaps[10] == pytest.approx(gaps[8] / 2, rel=0.2)
    assert min(gaps[11:]) > 0.6 * gaps[8]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "advance", "let_in", "refuse", "leave", "hold"]),
        st.floats(0.0, 3.0),
        st.floats(0.0, 0.999),
    ),
    max_size=60,
)


@hypothesis.given(STEPS)
@hypothesis.settings(max_examples=200, deadline=None)
def test_nobody_goes_while_it_is_quiet_and_nobody_is_lost(steps: list[tuple[str, float, float]]) -> None:
    """Whatever happens in whatever order: no grant before the latest time told, and everybody leaves in the
    end.
    """
    lane, now, told_until = Lane(slow_start=2), 0.0, 0.0
    waiting: list[Ticket] = []
    under_way: list[Ticket] = []

    def advance() -> None:
        for ticket in lane.advance(now, lambda: HALF):
            assert now >= told_until
            waiting.remove(ticket)
            under_way.append(ticket)

    for order, (what, passed_s, share) in enumerate(steps):
        now += passed_s
        if what == "enter":
            waiting.append(Ticket(order))
            lane.enter(waiting[-1])
        elif what == "leave" and waiting:
            lane.leave(waiting.pop(int(share * len(waiting))))
        elif what == "let_in" and under_way:
            lane.let_in(under_way.pop(0), now)
        elif what == "hold":
            lane.hold(now, now + 1.0, 1.0, share)
            told_until = max(told_until, now + 1.0)
        elif what == "refuse":
            ticket = under_way.pop(0) if under_way else None
            lane.refused(ticket, now, now + 3 * share, 1.0, 4.0, share)
            told_until = max(told_until, now + 3 * share)
        advance()
        assert lane.waiting == len(waiting)
    while (wake_at := lane.wake_at()) is not None:
        now = max(now, wake_at)
        advance()
    assert waiting == []
