"""Numbers, durations and dates as servers write them. Every function is total: a figure, or None.

Law: ASCII only and strict grammar, so that `1_000`, `nan`, full-width digits or 5,000 digits neither raise
nor become a wait. Figures are clamped to `HUGE`, waits to `CEILING_S`: longer than anyone waits, small enough
to add.
"""

from __future__ import annotations

import datetime as dt
import re

HUGE = 1e19
CEILING_S = 1e10
"""Three centuries: every larger figure means the same to a caller, and sums of it stay exact."""

_MAX_CHARS = 64
_DECIMAL = re.compile(r"([0-9]+)(\.[0-9]+)?")
_SCIENTIFIC = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE]\+?([0-9]{1,6})")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|us|µs|ns|m|s))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|µs|ns|m|s)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})"
_IMF = re.compile(rf"[A-Z][a-z]{{2}}, ([0-9]{{2}}) ([A-Z][a-z]{{2}}) ([0-9]{{4}}) {_CLOCK} GMT")
_RFC850 = re.compile(rf"[A-Z][a-z]{{5,8}}, ([0-9]{{2}})-([A-Z][a-z]{{2}})-([0-9]{{2}}) {_CLOCK} GMT")
_ASCTIME = re.compile(rf"[A-Z][a-z]{{2}} ([A-Z][a-z]{{2}}) ([0-9 ][0-9]) {_CLOCK} ([0-9]{{4}})")
_ZONE = r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
_RFC3339 = re.compile(rf"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})[Tt ]{_CLOCK}(\.[0-9]{{1,9}})?{_ZONE}")
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()


def decimal(text: str) -> float | None:
    """A plain non-negative decimal (`5`, `0.5`), clamped to `HUGE`; None for every other text.

    A number with an exponent is not in the grammar; it is believed only when it says a million or more, since
    then the opposite mistake (to come back early) would be the worse one.
    """
    text = text.strip(" \t")
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        whole = match.group(1).lstrip("0")
        return HUGE if len(whole) > 19 else float(whole + (match.group(2) or "")[:20] or "0")
    match = _SCIENTIFIC.fullmatch(text)
    return HUGE if match is not None and int(match.group(1)) >= 6 else None


def duration_s(text: str) -> float | None:
    """A Go duration (`6m0s`, `2m30.5s`, `500ms`) in seconds, the form OpenAI's reset headers use."""
    text = text.strip(" \t")
    if len(text) > _MAX_CHARS or not _DURATION.fullmatch(text):
        return None
    parts = _DURATION_PART.findall(text)
    return min(sum(float(figure) * _UNIT_S[unit] for figure, unit in parts), CEILING_S)


def http_date(text: str, wall_now: float) -> float | None:
    """One of the three date forms of RFC 9110, section 5.6.7, in epoch seconds.

    `wall_now` decides the century of a two-digit year: more than fifty years ahead means the past.
    """
    text = text.strip(" \t")
    if len(text) > _MAX_CHARS:
        return None
    if match := _IMF.fullmatch(text):
        day, month, year, *clock = match.groups()
        return _epoch(int(year), _MONTHS.get(month), int(day), clock)
    if match := _ASCTIME.fullmatch(text):
        month, day, *clock, year = match.groups()
        return _epoch(int(year), _MONTHS.get(month), int(day), clock)
    if match := _RFC850.fullmatch(text):
        day, month, year, *clock = match.groups()
        return _epoch(_full_year(int(year), wall_now), _MONTHS.get(month), int(day), clock)
    return None


def rfc3339(text: str) -> float | None:
    """An RFC 3339 timestamp (`2025-08-21T12:40:59Z`) in epoch seconds, the form of Anthropic's reset
    headers.
    """
    text = text.strip(" \t")
    match = _RFC3339.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        return None
    year, month, day, *clock, fraction, sign, zone_h, zone_m = match.groups()
    seconds = _epoch(int(year), int(month), int(day), clock)
    if seconds is None:
        return None
    offset_s = int(f"{sign}1") * (int(zone_h) * 3600 + int(zone_m) * 60) if sign else 0
    return seconds + float(f"0{fraction or ''}") - offset_s


def _full_year(two_digits: int, wall_now: float) -> int:
    this_year = 1970 + int(wall_now // (365.2425 * 86400))
    year = this_year - this_year % 100 + two_digits
    if year > this_year + 50:
        return year - 100
    return year + 100 if year < this_year - 49 else year


def _epoch(year: int, month: int | None, day: int, clock: list[str]) -> float | None:
    hour, minute, second = (int(part) for part in clock)
    if month is None or hour > 23 or minute > 59 or second > 60:
        return None
    try:
        days = dt.date(year, month, day).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None
    return float(days * 86400 + hour * 3600 + minute * 60 + second)
