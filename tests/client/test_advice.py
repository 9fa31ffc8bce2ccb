"""What the client reads in a response's headers: the shared table, then whatever a hostile server may
send.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.wire_cases import CASES, WALL_NOW, WireCase
from tidegate_client import Why
from tidegate_client.core import clouds, figures, limits
from tidegate_client.core.refusal import SCOPES, Refusal, read_refusal
from tidegate_client.errors import RateLimited as Error
from tidegate_client.fields import advice_from, allowance_from, answered_from, refusal_from

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet='0123456789.,;="rt-+eE GMTMonSun:hms@?()_', max_size=60),
    st.from_regex(r"[0-9]{1,25}(\.[0-9]{0,10})?", fullmatch=True),
)


NAMES = [
    "Retry-After",
    "retry-after-ms",
    "RateLimit",
    "RateLimit-Reset",
    "RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Remaining",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-tokens-reset",
    "Date",
    "Age",
    "x-should-retry",
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reads_what_the_table_says(case: WireCase) -> None:
    """Every row of the shared table is understood as written there, the body as what no header names."""
    content = b"" if case.body is None else json.dumps(case.body).encode()
    answered = answered_from(case.status, case.headers, content, WALL_NOW)

    assert answered.wait_s == (None if case.wait_s is None else pytest.approx(case.wait_s))
    assert answered.source == case.source
    assert answered.advice.should_retry == case.should_retry
    assert answered.advice.nothing_left_s == case.nothing_left_s
    assert answered.refusal.quota == case.quota


@hypothesis.given(st.lists(st.tuples(st.sampled_from(NAMES), TEXT), max_size=6))
@hypothesis.settings(max_examples=300)
def test_any_headers_give_a_usable_wait_or_none(headers: list[tuple[str, str]]) -> None:
    """Whatever the values are, nothing is raised, and a wait is positive, finite and small enough to add."""
    advice = advice_from(headers, WALL_NOW)

    for seconds in (advice.wait_s, advice.nothing_left_s):
        assert seconds is None or 0 < seconds <= figures.CEILING_S
    assert (advice.wait_s is None) == (advice.source == "none")


@pytest.mark.parametrize(
    "parse",
    [
        figures.decimal,
        figures.duration_s,
        figures.rfc3339,
        lambda text: figures.http_date(text, WALL_NOW),
        lambda text: limits.reset_s(text, WALL_NOW),
    ],
    ids=["decimal", "duration", "rfc3339", "http-date", "reset"],
)
@hypothesis.given(text=TEXT)
@hypothesis.settings(max_examples=150)
def test_every_parser_is_total(parse: Callable[[str], float | None], text: str) -> None:
    """No text makes a parser raise or answer with something that is not a finite number."""
    figure = parse(text)

    assert figure is None or math.isfinite(figure)


@hypothesis.given(st.integers(min_value=-2_000_000_000, max_value=6_000_000_000))
def test_dates_survive_a_round_trip_in_all_three_forms(instant: int) -> None:
    """A date written in any of the three forms is read back to the second."""
    moment = EPOCH + dt.timedelta(seconds=instant)
    day, month, clock = DAYS[moment.weekday()], MONTHS[moment.month - 1], f"{moment:%H:%M:%S}"
    imf = f"{day}, {moment.day:02d} {month} {moment.year:04d} {clock} GMT"
    asctime = f"{day} {month} {moment.day:2d} {clock} {moment.year:04d}"

    assert figures.http_date(imf, WALL_NOW) == instant
    assert figures.http_date(asctime, WALL_NOW) == instant
    assert figures.rfc3339(f"{moment:%Y-%m-%dT%H:%M:%SZ}") == instant


@pytest.mark.parametrize(
    "text",
    [
        *(
            "2026-02-31T10:00:00Z",
            "2026-13-01T10:00:00Z",
            "2026-11-29T24:00:00Z",
            "2026-11-29T10:61:00+25:00",
        ),
        *("Sun, 31 Feb 2026 10:00:00 GMT", "Sun, 06 Nov 2026 25:00:00 GMT", "Sun, 06 nov 2026 10:00:00 GMT"),
        *("Sunday, 06-Foo-26 10:00:00 GMT", "Sun Nov 00 10:00:00 2026"),
    ],
)
def test_an_impossible_date_is_none(text: str) -> None:
    """Months without a name, days that do not exist and hours after the last are no instant."""
    assert figures.rfc3339(text) is None
    assert figures.http_date(text, WALL_NOW) is None


YEARS = [("26", 2026), ("76", 2076), ("77", 1977), ("94", 1994), ("00", 2000)]


@pytest.mark.parametrize(("two_digits", "year"), YEARS)
def test_two_digit_years_follow_the_fifty_year_rule(two_digits: str, year: int) -> None:
    """More than fifty years ahead means the most recent past year (RFC 9110, section 5.6.7)."""
    instant = figures.http_date(f"Sunday, 06-Nov-{two_digits} 08:49:37 GMT", WALL_NOW)

    assert instant == dt.datetime(year, 11, 6, 8, 49, 37, tzinfo=dt.timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b'{"error": {"code": "BUSY", "reason": "queue_full", "scope": "class", "retry_after": 3}}',
            Refusal(reason="queue_full", scope="class", wait_s=3.0, appointed=True),
        ),
        (
            b'{"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "pay"}}',
            Refusal(reason="insufficient_quota", message="pay", quota=True),
        ),
        (b'{"error": {"code": 429, "type": "Too Many", "message": 7}}', Refusal(reason="Too Many")),
        (
            b'{"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}',
            Refusal(reason="rate_limit_error", message="slow"),
        ),
        (
            b'{"error": "Model is overloaded", "error_type": "overloaded"}',
            Refusal(reason="overloaded", message="Model is overloaded"),
        ),
        (
            b'{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "detail": "later"}',
            Refusal(reason="https://iana.org/assignments/http-problem-types#quota-exceeded", message="later"),
        ),
        (b'{"error": {"scope": "galaxy", "retry_after": true}}', Refusal()),
        (b'{"error": {"retry_after": -3}}', Refusal()),
        (b'{"error": {"retry_after": 1e400}}', Refusal()),
        (b'{"error": {"retry_after": 0.25}}', Refusal(wait_s=0.25)),
        (b'{"error": null}', Refusal()),
        (b"[1, 2]", Refusal()),
        (b"\xff\xfe", Refusal()),
        (b"", Refusal()),
        (b"[" * 100_000, Refusal()),
        (b"<html>busy</html>", Refusal()),
    ],
)
def test_reads_who_refused_and_why(content: bytes, expected: Refusal) -> None:
    """The body's dialects are understood; anything else says nothing."""
    assert refusal_from(content) == expected


SENTENCES = st.lists(
    st.sampled_from(
        ["try again ", "retry ", "in ", "after ", "1", "59.9", "h", "ms", " s", "and ", "m", "."]
    ),
    max_size=12,
).map("".join)
LEAVES = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=9)
    | SENTENCES
    | st.sampled_from(["59s", "PerDay"])
)
MEMBERS = st.sampled_from(
    [
        *("error", "code", "type", "reason", "scope", "message", "detail", "status", "error_type"),
        *("retry_after", "retry_after_ms", "details", "retryDelay", "violations", "quotaId"),
        *("metadata", "headers", "X-RateLimit-Reset", "Retry-After"),
    ]
)
BODIES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(MEMBERS, inner) | st.lists(inner, max_size=3), max_leaves=12
)


@hypothesis.given(BODIES)
def test_any_body_is_read(body: object) -> None:
    """Whatever JSON arrives, the refusal is complete and its wait usable."""
    refusal = answered_from(429, (), json.dumps(body).encode(), WALL_NOW).refusal

    assert refusal.wait_s is None or 0 < refusal.wait_s <= figures.CEILING_S
    assert refusal.scope in SCOPES
    assert len(refusal.message) <= 500
    assert refusal.wait_s is not None or not refusal.in_words


@hypothesis.given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59_999))
def test_a_duration_in_a_sentence_survives_a_round_trip(hours: int, minutes: int, milliseconds: int) -> None:
    """However a server spells it, the wait is the whole of it."""
    seconds = f"{milliseconds / 1000:.3f}"
    expected = hours * 3600 + minutes * 60 + milliseconds / 1000
    spelt = [
        f"Please try again in {hours}h{minutes}m{seconds}s.",
        f"Retry after {hours} hours, {minutes} minutes and {seconds} seconds, please",
        f"retry in {milliseconds} milliseconds; try again in {hours}h {minutes}m {seconds}s",
    ]
    for sentence in spelt:
        assert clouds.sentence_wait_s(sentence) == (pytest.approx(expected) if expected else None)


def test_a_long_body_is_read_in_a_bounded_way() -> None:
    """Only the first items and characters are looked at; a duration beyond the grammar is none."""
    details = [{"retryDelay": "1s"}] * 32 + [{"retryDelay": "9s"}]

    assert clouds.details_wait_s(details) == 1.0
    assert clouds.sentence_wait_s("x" * 5000 + " try again in 5s") is None
    assert clouds.sentence_wait_s("try again in " + "1 s and " * 100_000) is None


def test_a_servers_words_fit_one_line() -> None:
    """Neither a forged line of a log nor a command for the terminal comes through a reason or a message."""
    error = {"reason": "full\nINFO all is well", "message": "a\x1b[2Jb\u2028c 队列已满"}

    for body in ({"error": error}, {"error": error["message"], "error_type": error["reason"]}):
        refusal = read_refusal(body)
        assert refusal.reason == "full INFO all is well"
        assert refusal.message == "a [2Jb c 队列已满"


def test_a_policy_item_that_is_neither_is_left_out() -> None:
    """A decimal or an inner list among the policies says nothing; the others count."""
    allowance = allowance_from([("RateLimit-Policy", '1.5;w=1, (1 2);w=3, "a";q=9;w=60')], None, 0.0)

    assert allowance is not None
    assert allowance.quota == 9


def test_a_time_beyond_the_calendar_is_its_end() -> None:
    """No wait is too long to be an instant."""
    error = Error(why=Why.OVER_BUDGET, retry_after=1e18, wall_now=0.0)

    assert error.retry_at == dt.datetime.max.replace(tzinfo=dt.timezone.utc)
