"""A level in a memory-mapped file: any process of the machine writes it, others read it.

Law of this file: one writer for each file, any number of readers, no locks and no system calls once
mapped. The record is a sequence lock (the sequence is odd while a write is under way; after Lameter,
"Effective synchronization on Linux/NUMA systems", 2005) with a checksum on top, for Python can promise
no order of stores on machines other than x86. A writer that has gone silent is a failure, not its last
level for ever: records carry the time on the machine-wide monotonic clock.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from tidegate.core.reading import FIGURES, InvalidReading, Reading, vouched_reading
from tidegate.probes.protocol import ProbeError

MAGIC = b"TIDEGATE"
VERSION = 2
# In the order of Reading's fields: the figures come out of the record as its arguments.
_FIGURES = ("kv_usage", *FIGURES)
_figures_of: Callable[[Reading], tuple[float | None, ...]] = attrgetter(*_FIGURES)
_FRACTIONAL = frozenset({"kv_usage", "preemptions", "generation_tokens", "prompt_tokens"})
_KINDS: list[Callable[[float], float]] = [float if name in _FRACTIONAL else int for name in _FIGURES]
_ASLEEP_FLAG = 1 << len(_FIGURES)
# magic, version | sequence, time, figures, flags (one bit an unknown figure, which is 0; asleep) | checksum
_HEAD = struct.Struct("<8sQ")
_SEQUENCE = struct.Struct("<Q")
_BODY = struct.Struct("<Qd" + "".join("d" if name in _FRACTIONAL else "Q" for name in _FIGURES) + "Q")
_CHECKSUM = struct.Struct("<I")
_RECORD_AT = _HEAD.size
SIZE_BYTES = _HEAD.size + _BODY.size + _CHECKSUM.size
_LEVEL_AT = 2  # in the unpacked body
# The CRC-32 of whatever ends with its own CRC-32 is this constant.
_WHOLE = zlib.crc32(_CHECKSUM.pack(zlib.crc32(b"")))
TRIES = 8


def default_path(name: str = "level") -> Path:
    """Return where a level of this name lives: shared memory where there is one."""
    directory = Path("/dev/shm")  # noqa: S108 - the machine's shared memory is the point
    return (directory if directory.is_dir() else Path(tempfile.gettempdir())) / f"tidegate-{name}"


class SharedLevelWriter:
    """Publishes readings in a file; close it, or use it as a context manager.

    `mode` are the file's permissions: 0o600 serves processes of the same user, 0o644 everyone's.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self, path: str | Path, *, mode: int = 0o600, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._sequence = 0
        # A finished file under a new name, renamed: a reader never maps half a header.
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            os.fchmod(handle, mode)
            os.write(handle, _HEAD.pack(MAGIC, VERSION) + bytes(SIZE_BYTES - _HEAD.size))
            self._map = mmap.mmap(handle, SIZE_BYTES)
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def write(self, reading: Reading) -> None:
        """Publish a reading; `instance` is not kept, the reader names it.

        Raises:
            InvalidReading: a count is too large for 64 bits.
        """
        odd = self._sequence + 1
        body = _packed(odd + 1, self._clock(), reading)
        self._sequence = even = odd + 1
        _SEQUENCE.pack_into(self._map, _RECORD_AT, odd)
        self._map[_RECORD_AT + _SEQUENCE.size : SIZE_BYTES] = body[_SEQUENCE.size :] + _CHECKSUM.pack(
            zlib.crc32(body)
        )
        _SEQUENCE.pack_into(self._map, _RECORD_AT, even)

    def write_level(self, kv_usage: float) -> None:
        """Publish a bare level, 0..1.

        Raises:
            InvalidReading: it is NaN or outside 0..1.
        """
        self.write(Reading(kv_usage=kv_usage))

    def close(self) -> None:
        """Unmap and remove the file."""
        self._map.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def __enter__(self) -> SharedLevelWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedLevelProbe:
    """Reads the level a `SharedLevelWriter` publishes.

    A record older than `max_age_s` seconds is a failure. A writer that starts anew is found by itself.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        instance: str = "default",
        max_age_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self.instance = instance
        self._max_age_s = max_age_s
        self._clock = clock
        self._map: mmap.mmap | None = None
        self._copy = b""
        self._body: tuple[Any, ...] = ()
        self._reading: Reading | None = None

    async def read(self) -> Sequence[Reading]:
        """Read the record; see `read_now`."""
        return [self.read_now()]

    def read_level(self) -> float | None:
        """Return the bare level, None when unknown: the cheapest reading there is.

        Raises:
            ProbeError: see `read_now`.
        """
        body = self._fresh_body()
        level: float = body[_LEVEL_AT]
        return None if body[-1] & 1 else level

    def read_now(self) -> Reading:
        """Read the record without an event loop; between two writes the same reading is handed out.

        Raises:
            ProbeError: there is no file, no record yet, an old one, or one of another version.
            InvalidReading: a figure cannot be true.
        """
        body = self._fresh_body()
        reading = self._reading
        if reading is None:
            self._reading = reading = _reading(body, self.instance)
        return reading

    async def aclose(self) -> None:
        """Unmap the file."""
        self._unmap()

    def _fresh_body(self) -> tuple[Any, ...]:
        mapped = self._map or self._attach()
        copy = mapped[_RECORD_AT:SIZE_BYTES]
        if copy != self._copy:  # else it has been looked at already
            self._look_at(copy, mapped)
        if self._clock() - self._body[1] > self._max_age_s:
            self._unmap()  # a new writer makes a new file: look again next time
            raise ProbeError(f"{self.path}: the writer has been silent for more than {self._max_age_s:g} s.")
        return self._body

    def _look_at(self, copy: bytes, mapped: mmap.mmap) -> None:
        for _ in range(TRIES):
            if not copy[0] & 1 and zlib.crc32(copy) == _WHOLE:
                self._copy, self._body, self._reading = copy, _BODY.unpack_from(copy), None
                return
            if not any(copy):
                raise ProbeError(f"{self.path}: nothing has been written yet.")
            copy = mapped[_RECORD_AT:SIZE_BYTES]
        raise ProbeError(f"{self.path}: no whole record in {TRIES} tries; did the writer die while writing?")

    def _attach(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), SIZE_BYTES, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ProbeError(f"{self.path}: no such file; is the writer running?") from error
        except (OSError, ValueError) as error:
            raise ProbeError(f"{self.path}: cannot be mapped ({error}).") from error
        magic, version = _HEAD.unpack_from(mapped, 0)
        if magic != MAGIC or version != VERSION:
            mapped.close()
            raise ProbeError(f"{self.path}: not a level of version {VERSION} (found {magic!r}, {version}).")
        self._map = mapped
        return mapped

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        self._copy = b""
        if mapped is not None:
            mapped.close()


def _packed(sequence: int, now: float, reading: Reading) -> bytes:
    figures = _figures_of(reading)
    flags = _ASLEEP_FLAG if reading.asleep else 0
    if None in figures:
        flags |= sum([1 << place for place, figure in enumerate(figures) if figure is None])
    values = [kind(figure or 0) for kind, figure in zip(_KINDS, figures, strict=True)]
    try:
        return _BODY.pack(sequence, now, *values, flags)
    except struct.error as error:
        raise InvalidReading(f"{reading}: expected counts of at most {2**64 - 1}.") from error


def _reading(body: tuple[Any, ...], instance: str) -> Reading:
    """Return the body as a reading. Whole numbers are unsigned in the record, which leaves four to check."""
    _, _, level, _, _, _, _, _, _, preemptions, generation, prompt, _, flags = body
    figures = _pick(flags)((*body, None, flags & _ASLEEP_FLAG != 0, instance))
    if (
        0.0 <= level <= 1.0
        and 0.0 <= preemptions < math.inf
        and 0.0 <= generation < math.inf
        and 0.0 <= prompt < math.inf
    ):
        return vouched_reading(figures)
    return Reading(**dict(zip(_FIGURES, figures, strict=False)), instance=instance)


@lru_cache(maxsize=64)
def _pick(flags: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return what takes a reading's fields out of a body, behind which None, asleep and the name stand."""
    known = [-3 if flags >> place & 1 else _LEVEL_AT + place for place in range(len(_FIGURES))]
    return itemgetter(*known, -2, -1)
