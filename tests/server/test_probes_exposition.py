"""Sifting a page while it streams in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tests.server.expositions import page
from tests.server.readings import parse_exposition
from tidegate.probes.exposition import MAX_LINE_BYTES, MAX_NAMES, ExpositionSieve
from tidegate.probes.protocol import ProbeError

PAGE = page("vllm_0.32.0")
WANTED = ("vllm:kv_cache_usage_perc", "vllm:cache_config_info", "vllm:num_requests_waiting_by_reason")


def test_only_wanted_samples_are_kept() -> None:
    """Other metrics, histograms and comments are left aside; labels come through."""
    samples = parse_exposition(PAGE, WANTED)

    assert set(samples) == set(WANTED)
    assert samples["vllm:kv_cache_usage_perc"] == [({"engine": "0", "model_name": "tiny"}, 0.7734375)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 700), max_size=20))
def test_chunks_may_be_cut_anywhere(cuts: list[int]) -> None:
    """However the page is cut, the samples are the same."""
    sieve = ExpositionSieve(WANTED)
    start = 0
    for length in cuts:
        sieve.feed(PAGE[start : start + length])
        start += length
    sieve.feed(PAGE[start:])

    assert sieve.finish() == parse_exposition(PAGE, WANTED)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.floats(allow_nan=False))
def test_any_label_value_comes_through(label: str, value: float) -> None:
    """Quotes, backslashes, braces and line feeds in labels are read as they were written."""
    registry = CollectorRegistry()
    Gauge("level", "", ["name"], registry=registry).labels(label).set(value)

    assert parse_exposition(generate_latest(registry), ["level"]) == {"level": [({"name": label}, value)]}


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_truncated_page_is_a_failure(cut: int) -> None:
    """A page that ends within a line was cut; its figures may be cut too (0.77 -> 0.7)."""
    with pytest.raises(ProbeError, match="truncated"):
        parse_exposition(PAGE[:-cut], WANTED)


@pytest.mark.parametrize("text", [b"", b"\n", b"\r\n\r\n", b"# only a comment\n"])
def test_an_empty_page_is_a_failure(text: bytes) -> None:
    """No metrics at all is no load of zero."""
    with pytest.raises(ProbeError, match="no metrics"):
        parse_exposition(text, WANTED)


def test_a_page_of_json_is_told_from_one_that_was_cut() -> None:
    """The commonest wrong address answers so; "truncated" alone sends its operator after the network."""
    with pytest.raises(ProbeError, match=r"JSON or the like.* check the path"):
        parse_exposition(b'{"status": "ok"}', WANTED)


def test_html_is_recognised() -> None:
    """A login page or a web interface is named as such."""
    with pytest.raises(ProbeError, match="HTML"):
        parse_exposition(b"<!DOCTYPE html>\n<html><body>hello</body></html>\n", WANTED)


@pytest.mark.parametrize(
    "line", [b'level{a="b" 1', b"level", b"level x", b'level{a="b"} ', b'level{a="\xff"} 1']
)
def test_damaged_lines_are_a_failure(line: bytes) -> None:
    """A line that cannot be read is said, not skipped."""
    with pytest.raises(ProbeError, match="not Prometheus text"):
        parse_exposition(line + b"\n", ["level"])


def test_a_line_without_end_is_refused_early() -> None:
    """Memory stays small: a line longer than any exposition's ends the reading."""
    sieve = ExpositionSieve(WANTED)
    sieve.feed(b"x" * MAX_LINE_BYTES)
    with pytest.raises(ProbeError, match="longer than"):
        sieve.feed(b"x")


def test_the_names_seen_are_bounded() -> None:
    """A page of a million names is read, but not remembered."""
    sieve = ExpositionSieve(["level"])
    for index in range(MAX_NAMES * 2):
        sieve.feed(b"metric_%d 1\n" % index)
    sieve.feed(b"level 1\n")

    assert sieve.finish() == {"level": [({}, 1.0)]}
    assert len(sieve.names) == MAX_NAMES


def test_windows_line_ends_are_read() -> None:
    """A page with CRLF says the same."""
    assert parse_exposition(b"level 0.5\r\n", ["level"]) == {"level": [({}, 0.5)]}
