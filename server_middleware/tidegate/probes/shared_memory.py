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
from pathlib import Path
from typing import Any

from tidegate.core.reading import Reading
from tidegate.probes.protocol import ProbeError

MAGIC = b"TIDEGATE"
VERSION = 1
_FIGURES = (
    "kv_usage",
    "waiting",
    "running",
    "capacity_tokens",
    "block_tokens",
    "max_sequences",
    "max_model_tokens",
    "preemptions",
    "generation_tokens",
    "prompt_tokens",
    "waiting_for_capacity",
)
_WHOLE = frozenset(_FIGURES) - {"kv_usage", "preemptions", "generation_tokens", "prompt_tokens"}
# magic, version | sequence | time, figures (NaN: unknown), asleep | checksum of time..asleep and sequence
_HEAD = struct.Struct("<8sQ")
_SEQUENCE = struct.Struct("<Q")
_BODY = struct.Struct(f"<d{len(_FIGURES)}dd")
_CHECKSUM = struct.Struct("<Q")
_RECORD = struct.Struct(f"<8sQQd{len(_FIGURES)}ddQ")
_BODY_AT = _HEAD.size + _SEQUENCE.size
_CHECKSUM_AT = _BODY_AT + _BODY.size
SIZE_BYTES = _RECORD.size
_TIME_AT, _LEVEL_AT = 3, 4  # in the unpacked record
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
        """Publish a reading; `instance` is not kept, the reader names it."""
        figures = (getattr(reading, name) for name in _FIGURES)
        body = _BODY.pack(
            self._clock(),
            *(math.nan if figure is None else figure for figure in figures),
            float(reading.asleep),
        )
        odd = self._sequence + 1
        self._sequence = even = self._sequence + 2
        checksum = zlib.crc32(body, even & 0xFFFFFFFF)
        _SEQUENCE.pack_into(self._map, _HEAD.size, odd)
        self._map[_BODY_AT : _CHECKSUM_AT + _CHECKSUM.size] = body + _CHECKSUM.pack(checksum)
        _SEQUENCE.pack_into(self._map, _HEAD.size, even)

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
        self._last: tuple[tuple[Any, ...], Reading] | None = None

    async def read(self) -> Sequence[Reading]:
        """Read the record; see `read_now`."""
        return [self.read_now()]

    def read_level(self) -> float | None:
        """Return the bare level, None when unknown: the cheapest reading there is.

        Raises:
            ProbeError: see `read_now`.
        """
        level: float = self._fresh_record()[_LEVEL_AT]
        return None if math.isnan(level) else level

    def read_now(self) -> Reading:
        """Read the record without an event loop; between two writes the same reading is handed out.

        Raises:
            ProbeError: there is no file, no record yet, an old one, or one of another version.
            InvalidReading: a figure cannot be true.
        """
        record = self._fresh_record()
        last = self._last
        if last is not None and last[0] == record[2:4]:
            return last[1]
        figures: dict[str, Any] = {
            name: None if math.isnan(value) else int(value) if name in _WHOLE else value
            for name, value in zip(_FIGURES, record[_LEVEL_AT:-2], strict=True)
        }
        reading = Reading(**figures, asleep=record[-2] != 0.0, instance=self.instance)
        self._last = (record[2:4], reading)
        return reading

    async def aclose(self) -> None:
        """Unmap the file."""
        self._unmap()

    def _fresh_record(self) -> tuple[Any, ...]:
        record = self._record()
        if self._clock() - record[_TIME_AT] > self._max_age_s:
            self._unmap()  # a new writer makes a new file: look again next time
            raise ProbeError(f"{self.path}: the writer has been silent for more than {self._max_age_s:g} s.")
        return record

    def _record(self) -> tuple[Any, ...]:
        mapped = self._map or self._attach()
        for _ in range(TRIES):
            copy = mapped[:SIZE_BYTES]
            record = _RECORD.unpack(copy)
            sequence: int = record[2]
            if sequence == 0:
                raise ProbeError(f"{self.path}: nothing has been written yet.")
            if (
                sequence & 1 == 0
                and zlib.crc32(copy[_BODY_AT:_CHECKSUM_AT], sequence & 0xFFFFFFFF) == record[-1]
            ):
                return record
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
        self._last = None
        if mapped is not None:
            mapped.close()
