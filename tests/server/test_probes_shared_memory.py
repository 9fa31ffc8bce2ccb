"""Tidegate's own level in shared memory."""

from __future__ import annotations

import dataclasses
import itertools
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.core.reading import InvalidReading, Reading, vouched_reading
from tidegate.probes import ProbeError
from tidegate.probes.shared_memory import (
    _BODY,
    _FIGURES,
    _RECORD_AT,
    MAGIC,
    SIZE_BYTES,
    SharedLevelProbe,
    SharedLevelWriter,
    default_path,
)

FULL = Reading(
    kv_usage=0.25,
    waiting=1,
    running=2,
    capacity_tokens=16384,
    block_tokens=16,
    max_sequences=64,
    max_model_tokens=2048,
    preemptions=3.5,
    generation_tokens=1e12,
    prompt_tokens=4.0,
    waiting_for_capacity=1,
    asleep=True,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the level lives in this test."""
    return tmp_path / "level"


@pytest.fixture
def writer(path: Path) -> Iterator[SharedLevelWriter]:
    """Return a writer."""
    with SharedLevelWriter(path) as open_writer:
        yield open_writer


@pytest.mark.parametrize(
    "reading", [FULL, Reading(kv_usage=None, running=0), Reading(kv_usage=0.0), Reading(kv_usage=1)]
)
async def test_every_figure_comes_through(writer: SharedLevelWriter, reading: Reading) -> None:
    """What was written is read; unknown stays unknown and does not become 0."""
    writer.write(reading)
    probe = SharedLevelProbe(writer.path)

    assert await probe.read() == [reading]
    await probe.aclose()


def test_new_levels_are_seen_and_old_ones_not_built_again(writer: SharedLevelWriter) -> None:
    """Each write is seen; between writes the same reading is handed out."""
    probe = SharedLevelProbe(writer.path, instance="b")
    for level in (0.1, 0.2, 0.2):
        writer.write_level(level)
        reading = probe.read_now()
        assert (reading.kv_usage, reading.instance) == (level, "b")
        assert probe.read_now() is reading
        assert probe.read_level() == level
    writer.write(Reading(kv_usage=None))
    assert probe.read_level() is None


@pytest.mark.parametrize("level", [float("nan"), 1.5, -0.1])
def test_impossible_levels_are_not_published(writer: SharedLevelWriter, level: float) -> None:
    """The writer is told, not the reader."""
    with pytest.raises(InvalidReading):
        writer.write_level(level)


def test_nothing_written_is_no_level_of_zero(writer: SharedLevelWriter) -> None:
    """A fresh file holds no reading."""
    with pytest.raises(ProbeError, match="nothing has been written"):
        SharedLevelProbe(writer.path).read_now()


def test_a_silent_writer_is_a_failure(path: Path) -> None:
    """The last level of a dead writer does not count for ever."""
    now = 100.0
    with SharedLevelWriter(path, clock=lambda: now) as writer:
        writer.write_level(0.1)
        probe = SharedLevelProbe(path, max_age_s=3.0, clock=lambda: now)
        now = 103.0
        assert probe.read_now().kv_usage == 0.1
        now = 103.5
        with pytest.raises(ProbeError, match="silent for more than 3 s"):
            probe.read_now()
        with pytest.raises(ProbeError, match="silent"):
            probe.read_level()
        writer.write_level(0.2)
        assert probe.read_now().kv_usage == 0.2


def test_a_new_writer_is_found(path: Path) -> None:
    """A writer that starts anew makes a new file; the reader finds it when the old one has aged."""
    now = 0.0
    first = SharedLevelWriter(path, clock=lambda: now)
    probe = SharedLevelProbe(path, max_age_s=1.0, clock=lambda: now)
    first.write_level(0.1)
    assert probe.read_now().kv_usage == 0.1

    second = SharedLevelWriter(path, clock=lambda: now)
    now = 2.0
    second.write_level(0.9)
    with pytest.raises(ProbeError, match="silent"):
        probe.read_now()
    assert probe.read_now().kv_usage == 0.9
    second.close()
    first.close()  # its file is gone already


def test_no_file_is_a_failure_until_there_is_one(path: Path) -> None:
    """The reader may start first."""
    probe = SharedLevelProbe(path)
    with pytest.raises(ProbeError, match="is the writer running"):
        probe.read_now()
    with SharedLevelWriter(path) as writer:
        writer.write_level(0.5)
        assert probe.read_now().kv_usage == 0.5


@pytest.mark.parametrize(
    "content", [b"", b"short", b"x" * SIZE_BYTES, MAGIC + b"\x01" + bytes(SIZE_BYTES - 9)]
)
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    """Another file, or another version, is named and not interpreted."""
    path.write_bytes(content)
    with pytest.raises(ProbeError, match=r"cannot be mapped|not a level of version 2"):
        SharedLevelProbe(path).read_now()


@pytest.mark.parametrize("damage", ["odd", "torn"])
def test_half_a_record_is_never_read(writer: SharedLevelWriter, damage: str) -> None:
    """A writer that died while writing, or stores seen out of order: a failure, not a mixed reading."""
    writer.write(FULL)
    if damage == "odd":
        writer._map[16:24] = (3).to_bytes(8, "little")
    else:
        writer._map[40] = writer._map[40] ^ 1

    with pytest.raises(ProbeError, match="no whole record"):
        SharedLevelProbe(writer.path).read_now()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (2, 1.5, "divide by 100"),
        (2, float("nan"), "kv_usage is nan"),
        (2, -0.5, "kv_usage is -0.5"),
        (9, float("inf"), "preemptions is inf"),
        (10, -1.0, "generation_tokens is -1.0"),
        (11, float("nan"), "prompt_tokens is nan"),
    ],
)
def test_another_program_s_impossible_figures_are_refused(
    writer: SharedLevelWriter, place: int, value: float, words: str
) -> None:
    """A whole record vouches for its bytes, not for what a writer of one's own put there."""
    writer.write(FULL)
    body = list(_BODY.unpack(writer._map[_RECORD_AT:-4]))
    body[place] = value
    packed = _BODY.pack(*body)
    writer._map[_RECORD_AT:] = packed + zlib.crc32(packed).to_bytes(4, "little")

    with pytest.raises(InvalidReading, match=words):
        SharedLevelProbe(writer.path).read_now()


def test_a_count_beyond_64_bits_is_said_to_the_writer(writer: SharedLevelWriter) -> None:
    """The last good record stays."""
    writer.write(FULL)
    with pytest.raises(InvalidReading, match="at most 18446744073709551615"):
        writer.write(Reading(kv_usage=0.5, waiting=2**64))
    assert SharedLevelProbe(writer.path).read_now().waiting == FULL.waiting


def test_a_count_that_is_no_whole_number_is_published_whole(writer: SharedLevelWriter) -> None:
    """A caller may hold counts as floats."""
    writer.write(Reading(kv_usage=0.5, waiting=2.0))  # type: ignore[arg-type]
    waiting = SharedLevelProbe(writer.path).read_now().waiting
    assert (waiting, type(waiting)) == (2, int)


def test_a_reading_that_was_vouched_for_is_like_any_other() -> None:
    """Equal, hashed alike, frozen; and the record holds the figures in the order of the fields."""
    names = [field.name for field in dataclasses.fields(Reading)]
    vouched = vouched_reading(dataclasses.astuple(FULL))

    assert (vouched, hash(vouched), type(vouched)) == (FULL, hash(FULL), Reading)
    assert dataclasses.replace(vouched, waiting=5).waiting == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        vouched.waiting = 1  # type: ignore[misc]
    assert names == [*_FIGURES, "asleep", "instance"]


def test_the_layout_is_what_the_law_says() -> None:
    """Changing the record means a new version: 16 bytes, 14 figures of 8, 4 of checksum."""
    assert SIZE_BYTES == 16 + 14 * 8 + 4


def test_permissions_are_the_owner_s_unless_asked(path: Path) -> None:
    """0o600 by default, as asked otherwise."""
    with SharedLevelWriter(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with SharedLevelWriter(path, mode=0o644):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not path.exists()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """An OSError names the path; nothing is left behind."""
    with pytest.raises(OSError, match="nowhere"):
        SharedLevelWriter(tmp_path / "nowhere" / "level")
    assert list(tmp_path.iterdir()) == []


def test_the_default_place_is_named_after_the_level() -> None:
    """In shared memory where there is one."""
    assert default_path("gpu0").name == "tidegate-gpu0"


HAMMER = """
import itertools, select, sys
from tidegate.core.reading import Reading
from tidegate.probes.shared_memory import SharedLevelWriter
writer = SharedLevelWriter(sys.argv[1])
print("up", flush=True)
for index in itertools.count():
    if index % 1000 == 0 and select.select([sys.stdin], [], [], 0)[0]:
        break  # the reader has seen enough
    writer.write(Reading(kv_usage=(index % 100) / 100, waiting=index % 100, running=index % 100))
"""


def test_a_writer_in_another_process_never_shows_a_mixed_reading(path: Path) -> None:
    """While one process writes as fast as it can, every reading here is of one piece."""
    command = [sys.executable, "-c", HAMMER, str(path)]
    seen, whole = set[int | None](), 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        probe = SharedLevelProbe(path)
        while (whole < 20_000 or len(seen) < 50) and process.poll() is None:
            try:
                reading = probe.read_now()
            except ProbeError:
                continue
            assert reading.waiting == reading.running == round((reading.kv_usage or 0) * 100)
            seen.add(reading.waiting)
            whole += 1
        assert process.poll() is None


def cpu_s(call: Callable[[], object]) -> float:
    """Return the least processor time of some thousand calls."""
    costs = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(2000):
            call()
        costs.append(time.process_time() - started)
    return min(costs)


def test_a_new_record_costs_less_than_making_a_reading(writer: SharedLevelWriter) -> None:
    """On any machine: a checked `Reading` takes several microseconds, this must stay under two."""
    records = []
    for _ in range(2):
        writer.write(FULL)
        records.append(writer._map[:])
    turns = itertools.cycle(records)
    probe = SharedLevelProbe(writer.path)

    def read() -> None:
        writer._map[:] = next(turns)
        probe.read_now()

    assert cpu_s(read) < 0.5 * cpu_s(lambda: dataclasses.replace(FULL))
    assert cpu_s(probe.read_now) < 0.1 * cpu_s(lambda: dataclasses.replace(FULL))
