"""The pure pace, and what servers state it should be."""

from __future__ import annotations

import itertools

import pytest

from tidegate_client.core.lane import Lane, Ticket
from tidegate_client.core.limits import Allowance
from tidegate_client.core.pace import Pace
from tidegate_client.fields import allowance_from

HALF = 0.5
WALL_NOW = 1_795_954_896.0
USED_UP = {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}
STATED = [
    ({"RateLimit-Policy": '"burst";q=100;w=60'}, Allowance(100, 60.0)),
    ({"RateLimit-Policy": '"a";q=5;w=1, "b";q=100;w=60', "RateLimit": '"b";r=0;t=9'}, Allowance(100, 60.0)),
    ({"RateLimit-Policy": '"a";q=5;w=1, "b";q=100;w=60'}, Allowance(100, 60.0)),
    ({"RateLimit-Policy": "10;w=1, 50;w=60"}, Allowance(50, 60.0)),
    ({"RateLimit-Policy": "10;w=1"}, Allowance(10, 1.0)),
    ({"RateLimit-Limit": "100, 100;w=60"}, Allowance(100, 60.0)),
    ({"RateLimit-Limit": "100", "RateLimit-Remaining": "0", "RateLimit-Reset": "50"}, Allowance(100, 50.0)),
    (USED_UP, Allowance(60, 30.0)),
    (USED_UP | {"X-RateLimit-Reset": f"{int(WALL_NOW) + 30}"}, Allowance(60, 30.0)),
    (
        {
            "x-ratelimit-limit-requests": "9",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1s",
        },
        Allowance(9, 1.0),
    ),
    (
        {
            f"anthropic-ratelimit-requests-{kind}": text
            for kind, text in (("limit", "50"), ("remaining", "0"), ("reset", "2026-11-29T12:22:36Z"))
        },
        Allowance(50, 60.0),
    ),
    (USED_UP | {"X-RateLimit-Remaining": "3"}, None),
    ({f"x-ratelimit-{kind}-tokens": "0" for kind in ("limit", "remaining")}, None),
    ({"RateLimit-Policy": '"tokens";q=9000;w=60;qu="content-bytes"'}, None),
    ({"RateLimit-Policy": '"tokens";q=9000;w=60;tidegate-unit="tokens"'}, None),
    ({"RateLimit-Policy": '"day";q=1000;w=86400'}, None),
    ({"RateLimit-Policy": '"none";q=0;w=60'}, None),
    ({"RateLimit-Policy": '"none";q=60'}, None),
    ({"RateLimit-Policy": '"broken";q=;;'}, None),
    ({"RateLimit-Policy": '"burst";q=100;w=60', "Age": "3"}, None),
    (USED_UP | {"X-RateLimit-Limit": "0"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "expected"), STATED)
def test_reads_what_a_server_says_it_allows(headers: dict[str, str], expected: Allowance | None) -> None:
    """The policy that refused, in every generation of the draft and in the vendors' fields; else nothing."""
    assert allowance_from(headers.items(), 5.0, WALL_NOW) == expected


def leave_times(stated: Allowance | None, waiting: int) -> list[float]:
    """When the callers of a lane leave after one refusal, with every attempt let in at once."""
    lane = Lane(slow_start=8)
    lane.refused(None, 0.0, 1.0, 1.0, 16.0, 0.0, stated)
    for order in range(waiting):
        lane.enter(Ticket(order))
    left: list[float] = []
    while (wake_at := lane.wake_at()) is not None:
        for ticket in lane.advance(wake_at, lambda: HALF):
            left.append(wake_at)
            lane.let_in(ticket, wake_at)
    return left


def test_a_stated_rate_is_kept_from_the_first_release_on() -> None:
    """20 a second stated: 180 callers leave a little faster, spending most of what was saved on them all."""
    left = leave_times(Allowance(20, 1.0), 180)

    assert left[-1] - left[0] == pytest.approx(180 / 21.4, abs=0.2)
    gaps = [later - earlier for earlier, later in itertools.pairwise(left)]
    assert min(gaps) >= 1 / 30 - 1e-9
    assert leave_times(Allowance(1, 10.0), 4)[-1] >= 20


def test_a_stated_rate_that_is_refused_is_not_believed_any_more() -> None:
    """Where 20 a second are stated and 5 are let in (others use the same quota), the pace comes down to 5."""
    pace = Pace()
    pace.state(Allowance(20, 1.0))
    pace.quiet(0.0, 1.0)
    pace.begin_cycle(1.0)
    for _ in range(10):
        pace.let_in(1.5, free=False)
    pace.quiet(2.0, 3.0)
    pace.begin_cycle(3.0)

    assert pace.at(3.0, 100) < 8


def test_savings_are_spent_over_the_line_and_never_at_once() -> None:
    """Few callers and a large saving: one and a half times the rate, no more."""
    pace = Pace()
    pace.state(Allowance(100, 10.0))
    pace.begin_cycle(0.0)

    assert pace.at(0.0, 10) == 15
    assert pace.at(0.0, 10_000) == pytest.approx(10.06, abs=0.01)


def test_the_growth_counts_releases_not_time() -> None:
    """A line that was held up for a minute goes on at the pace it had."""
    pace = Pace()
    for _ in range(10):
        pace.let_in(0.0, free=True)
    pace.quiet(0.0, 1.0)
    pace.begin_cycle(1.0)

    assert pace.at(1.0, 50) == pace.at(61.0, 50) == pytest.approx(12)
    pace.released()
    assert pace.at(61.0, 50) > 12


def test_a_burst_within_an_instant_is_no_rate() -> None:
    """Twenty let in and a wait of 50 ms are twenty a second, not four hundred."""
    pace = Pace()
    for _ in range(20):
        pace.let_in(0.0, free=True)
    pace.quiet(0.0, 0.05)
    pace.begin_cycle(0.05)

    assert pace.at(0.05, 100) == pytest.approx(24)


def test_after_a_quiet_spell_everything_is_learnt_anew() -> None:
    """A pace that nobody needed for a while is forgotten, the stated one too."""
    pace = Pace()
    pace.state(Allowance(100, 1.0))
    pace.forget()

    assert pace.at(0.0, 10) == 8
