"""SGLang's own load snapshot: in shared memory, or as JSON at `/v1/loads`.

Law of this file: the shared layout is SGLang's and may change with any release, so what does not bear
exactly the known magic and version is refused, never interpreted. Read in sglang 0.5.23,
`srt/managers/load_snapshot.py`: a file `/dev/shm/sglang_loads_*.shm` with a header of magic `SLNS`,
version 2, number of ranks and size of a slot; in each slot the length of a msgpack map and the map,
written under an exclusive `flock`. The scheduler publishes every few decoding steps, and idle too, so an
old snapshot is a dead scheduler.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.core.reading import Reading
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.protocol import ProbeError, shown

SNAPSHOT_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where SGLang puts it
SNAPSHOT_PATTERN = "sglang_loads_*.shm"
MAGIC = b"SLNS"
VERSION = 2
LOADS_PATH = "/v1/loads?include=core"
MAX_AGE_S = 5.0
_HEADER = struct.Struct("<4sHHI")
_LENGTH = struct.Struct("<I")
_LOCK_TRIES = 20


class SglangSnapshotProbe:
    """Reads the shared snapshot; one fused reading, or one for each rank when `per_engine`.

    Without a `path` the only living snapshot in `directory` is taken, and looked for anew when it is silent,
    among those that did not lie beside it while it lived: they are another engine's. Files of servers that
    are gone may lie there, and whatever other users of the machine put there is not looked at.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        directory: Path = SNAPSHOT_DIRECTORY,
        instance: str = "default",
        per_engine: bool = False,
        max_age_s: float = MAX_AGE_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = None if path is None else Path(path)
        self._is_named = path is not None
        self._beside: set[Path] = set()  # the one that was found, while it lived
        self.instance = instance
        self._directory = directory
        self._per_engine = per_engine
        self._max_age_s = max_age_s
        self._wall_clock = wall_clock

    async def read(self) -> Sequence[Reading]:
        """Read every rank's slot.

        Raises:
            ProbeError: no such file, an unknown version, a damaged slot, or an old snapshot.
            InvalidReading: a figure cannot be true.
        """
        try:
            loads = self._only_living() if self.path is None else self._loads(self.path)
        except ProbeError:
            if not self._is_named:
                self.path = None  # a server that is started anew may write under another name
            raise
        if not self._is_named:
            self._beside = self._snapshots() - {self.path}
        return readings_from_loads(loads, instance=self.instance, per_engine=self._per_engine)

    def _only_living(self) -> Sequence[Mapping[str, Any]]:
        living: dict[Path, Sequence[Mapping[str, Any]]] = {}
        failures: list[str] = []
        for path in sorted(self._snapshots() - self._beside):
            try:
                living[path] = self._loads(path)
            except ProbeError as error:
                failures.append(str(error))
        if len(living) > 1:
            paths = ", ".join(map(str, living))
            raise ProbeError(f"several SGLang servers live on this machine ({paths}): set probe.path to one.")
        if not living:
            seen = f" ({'; '.join(failures)})" if failures else ""
            raise ProbeError(f"no living SGLang snapshot {self._directory}/{SNAPSHOT_PATTERN}{seen}.")
        path, loads = living.popitem()
        self.path = path
        return loads

    def _snapshots(self) -> set[Path]:
        return set(self._directory.glob(SNAPSHOT_PATTERN))

    def _loads(self, path: Path) -> Sequence[Mapping[str, Any]]:
        now_s = self._wall_clock()
        try:
            loads = [_load(rank, slot) for rank, slot in enumerate(_slots(path, is_named=self._is_named))]
            for rank, load in enumerate(loads):
                if now_s - load["timestamp"] > self._max_age_s:
                    raise ProbeError(
                        f"rank {rank} has been silent for more than {self._max_age_s:g} s; is it alive?"
                    )
        except ProbeError as error:
            raise ProbeError(f"{path}: {error}") from error
        return loads


def _slots(path: Path, *, is_named: bool) -> list[bytes]:
    # Opened anew each time: a restarted server makes a new file, under another name or in place.
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ProbeError(f"cannot be opened ({error.strerror}); is SGLang running?") from error
    try:
        owner, size = os.fstat(handle).st_uid, os.fstat(handle).st_size
        if not is_named and owner not in (os.geteuid(), 0):
            # Everybody may write to /dev/shm: a stranger's figures would open or close the gate.
            raise ProbeError(f"belongs to another user ({owner}); set probe.path if it is the engine's.")
        _lock(handle)
        if size < _HEADER.size:
            raise ProbeError(f"not a snapshot, only {size} bytes.")
        with mmap.mmap(handle, size, access=mmap.ACCESS_READ) as mapped:
            return _cut(mapped, size)
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # a write takes microseconds; a stopped writer must not stop us
        return
    raise ProbeError("a scheduler holds the lock and does not let go.")


def _cut(mapped: mmap.mmap, size: int) -> list[bytes]:
    magic, version, ranks, slot_bytes = _HEADER.unpack_from(mapped, 0)
    if magic != MAGIC or version != VERSION:
        raise ProbeError(
            f"layout {magic!r} version {version} is not known, expected {MAGIC!r} version {VERSION} "
            "(sglang 0.5.23); read /metrics or /v1/loads instead: set probe.urls."
        )
    if slot_bytes <= _LENGTH.size or ranks == 0 or size < _HEADER.size + ranks * slot_bytes:
        raise ProbeError(f"{ranks} slots of {slot_bytes} bytes do not fit {size} bytes.")
    starts = range(_HEADER.size, _HEADER.size + ranks * slot_bytes, slot_bytes)
    return [mapped[start : start + slot_bytes] for start in starts]


def _load(rank: int, slot: bytes) -> Mapping[str, Any]:
    (length,) = _LENGTH.unpack_from(slot, 0)
    if not 0 < length <= len(slot) - _LENGTH.size:
        raise ProbeError(f"rank {rank} has not published anything.")
    try:
        load = msgspec.msgpack.decode(slot[_LENGTH.size : _LENGTH.size + length])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProbeError(f"rank {rank} holds no msgpack ({error}).") from error
    if not isinstance(load, dict) or not isinstance(load.get("timestamp"), float):
        raise ProbeError(f"rank {rank} holds no load with a time stamp.")
    # SGLang leaves out what is zero.
    return {"num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.0, **load}


class SglangLoadsProbe:
    """Reads `/v1/loads` of a server; `url` is its root, or the whole address."""

    def __init__(
        self, url: str, *, http: BoundedHttp, instance: str | None = None, per_engine: bool = False
    ) -> None:
        root = url.rstrip("/")
        self.url = root if "/v1/loads" in root else root + LOADS_PATH
        self.instance = instance or urlsplit(url).netloc
        self._http = http
        self._per_engine = per_engine

    async def read(self) -> Sequence[Reading]:
        """Ask once.

        Raises:
            ProbeError: no answer, or not the answer of a `/v1/loads`.
            InvalidReading: a figure cannot be true.
        """
        body = bytearray()
        await self._http.get(self.url, "application/json", body.extend)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProbeError(f"{shown(self.url)}: not JSON ({error}).") from error
        loads = answer.get("loads") if isinstance(answer, dict) else None
        if not isinstance(loads, list) or not all(isinstance(load, dict) for load in loads):
            raise ProbeError(
                f"{shown(self.url)}: no list `loads` in the answer; this is not SGLang's /v1/loads."
            )
        return readings_from_loads(loads, instance=self.instance, per_engine=self._per_engine)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()


def readings_from_loads(
    loads: Sequence[Mapping[str, Any]], *, instance: str, per_engine: bool
) -> list[Reading]:
    """Return SGLang's loads, one for each data-parallel rank, as readings.

    Raises:
        ProbeError: there is none, or one has no level.
        InvalidReading: a figure cannot be true.
    """
    named = per_engine and len(loads) > 1
    ranks = [
        _reading(load, f"{instance}#{load.get('dp_rank', index)}" if named else instance)
        for index, load in enumerate(loads)
    ]
    if not ranks:
        raise ProbeError("SGLang names no rank at all.")
    return ranks if named or len(ranks) == 1 else [_fused(ranks, instance)]


def _reading(load: Mapping[str, Any], instance: str) -> Reading:
    if load.get("token_usage") is None:
        raise ProbeError(f"{instance}: SGLang's load has no token_usage.")
    return Reading(
        kv_usage=load["token_usage"],
        running=load.get("num_running_reqs"),
        waiting=load.get("num_waiting_reqs"),
        capacity_tokens=load.get("max_total_num_tokens") or None,
        max_sequences=load.get("max_running_requests") or None,
        instance=instance,
    )


def _fused(ranks: Sequence[Reading], instance: str) -> Reading:
    return Reading(
        kv_usage=max(reading.kv_usage or 0.0 for reading in ranks),
        running=_sum(reading.running for reading in ranks),
        waiting=_sum(reading.waiting for reading in ranks),
        capacity_tokens=_sum(reading.capacity_tokens for reading in ranks),
        max_sequences=_sum(reading.max_sequences for reading in ranks),
        instance=instance,
    )


def _sum(figures: Iterable[int | None]) -> int | None:
    known = list(figures)
    return None if None in known else sum(figure for figure in known if figure is not None)
