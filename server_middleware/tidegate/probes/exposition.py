"""Prometheus text -> the few samples a preset asks for.

Law of this file: nothing is done in proportion to the size of the page in one go. Lines are sifted as
the chunks come in (a set look-up per line), so the loop is held for one chunk at a time; only the handful
of lines that remain goes through `prometheus_client`'s parser, which is exact about labels and escapes.
A page that ends within a line is truncated, and a truncated page is no reading.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from tidegate.probes.protocol import ProbeError
from tidegate.probes.selectors import Sample

MAX_LINE_BYTES = 64 * 1024
"""A vLLM `cache_config_info` line is some 2 KB; a longer line than this is no exposition."""
MAX_NAMES = 4_096
"""Names remembered for recognising an engine and for error messages; pages with more stay readable."""


class ExpositionSieve:
    """Keeps the lines of the wanted metrics while a page streams in."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.names: set[str] = set()
        self._wanted = frozenset(name.encode() for name in wanted)
        self._seen: set[bytes] = set()
        self._kept: list[bytes] = []
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the page.

        Raises:
            ProbeError: a line is longer than any exposition's.
        """
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            raise ProbeError(
                f"a line is longer than {MAX_LINE_BYTES} bytes: this is not Prometheus text; check the path."
            )
        wanted, seen, kept = self._wanted, self._seen, self._kept
        for line in lines:
            name = line.partition(b"{")[0].partition(b" ")[0]
            if name in wanted:
                kept.append(line)
            if name not in seen and len(seen) < MAX_NAMES:
                seen.add(name)

    def finish(self) -> dict[str, list[Sample]]:
        """Return the samples by metric name.

        Raises:
            ProbeError: the page is without metrics, truncated, HTML, or otherwise no exposition.
        """
        if self._rest.strip() and not self._seen:
            raise ProbeError(
                "there is no whole line on the page: it is JSON or the like, or truncated; check the path."
            )
        if self._rest.strip():
            raise ProbeError("the page ends within a line: it was truncated.")
        self._seen -= {b"", b"#", b"\r"}
        if not self._seen:
            raise ProbeError("there are no metrics at all on the page; check the path.")
        self.names = {name.decode("utf-8", "replace") for name in self._seen}
        if any(name.startswith("<") for name in self.names):
            raise ProbeError("the page is HTML, not Prometheus text; check the path.")
        return _parse(self._kept)


def _parse(lines: Iterable[bytes]) -> dict[str, list[Sample]]:
    try:
        text = b"\n".join(lines).decode("utf-8")
        families = list(text_string_to_metric_families(text))
    except (ValueError, IndexError, KeyError) as error:
        raise ProbeError(f"the page is not Prometheus text ({error}).") from error
    samples: dict[str, list[Sample]] = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return samples
