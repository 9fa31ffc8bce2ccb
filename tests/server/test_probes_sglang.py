"""SGLang's load snapshot, in shared memory and over HTTP."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.expositions.misbehaving import answer, serving
from tidegate.core.reading import InvalidReading, Reading
from tidegate.probes import ProbeError
from tidegate.probes.bounded_http import BoundedHttp
from tidegate.probes.sglang import SglangLoadsProbe, SglangSnapshotProbe

NOW_S = 1_800_000_000.0
SLOT_BYTES = 16 * 1024
BUSY = {
    "timestamp": NOW_S - 0.2,
    "num_running_reqs": 12,
    "num_waiting_reqs": 3,
    "num_used_tokens": 7100,
    "max_total_num_tokens": 10_000,
    "max_running_requests": 64,
    "token_usage": 0.71,
    "queues": [3, 0, 0, 0, 0],
}
IDLE = {"timestamp": NOW_S - 0.5, "dp_rank": 1, "max_total_num_tokens": 10_000, "max_running_requests": 64}


def snapshot(
    path: Path,
    *loads: dict[str, Any] | bytes,
    magic: bytes = b"SLNS",
    version: int = 2,
    slot_bytes: int = SLOT_BYTES,
) -> Path:
    """Write a snapshot file as SGLang 0.5.23 lays it out."""
    content = struct.pack("<4sHHI", magic, version, len(loads), slot_bytes)
    for load in loads:
        payload = load if isinstance(load, bytes) else msgspec.msgpack.encode(load)
        content += (struct.pack("<I", len(payload)) + payload).ljust(slot_bytes, b"\0")
    path.write_bytes(content)
    return path


def probe(path: Path | None = None, **options: Any) -> SglangSnapshotProbe:
    """Return a probe whose clock stands still."""
    return SglangSnapshotProbe(path, wall_clock=lambda: NOW_S, **options)


async def test_one_rank(tmp_path: Path) -> None:
    """The figures of the snapshot are the reading's."""
    path = snapshot(tmp_path / "sglang_loads_a_1.shm", BUSY)

    assert await probe(path).read() == [
        Reading(kv_usage=0.71, running=12, waiting=3, capacity_tokens=10_000, max_sequences=64)
    ]


async def test_ranks_are_fused_or_apart(tmp_path: Path) -> None:
    """Hottest level and sums, or one reading for each rank; what SGLang leaves out is zero."""
    path = snapshot(tmp_path / "x.shm", BUSY, IDLE)

    (fused,) = await probe(path).read()
    hot, idle = await probe(path, per_engine=True).read()

    assert (fused.kv_usage, fused.running, fused.waiting, fused.capacity_tokens) == (0.71, 12, 3, 20_000)
    assert (hot.instance, hot.kv_usage) == ("default#0", 0.71)
    assert (idle.instance, idle.kv_usage, idle.running, idle.waiting) == ("default#1", 0.0, 0, 0)


async def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    """A layout of another release is never interpreted; the error says what to do instead."""
    for magic, version in ((b"SLNS", 3), (b"SLNS", 1), (b"NOPE", 2)):
        path = snapshot(tmp_path / "x.shm", BUSY, magic=magic, version=version)
        with pytest.raises(ProbeError, match=r"not known.*version 2.*probe\.urls"):
            await probe(path).read()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x80",
        msgspec.msgpack.encode({"timestamp": "now"}),
        b"\x91" * 5000,
    ],
)
async def test_damaged_slots_are_failures(tmp_path: Path, payload: bytes) -> None:
    """No payload, no msgpack, no map, no time stamp, too deep: said, not read as 0 %."""
    with pytest.raises(ProbeError, match="rank 0"):
        await probe(snapshot(tmp_path / "x.shm", payload)).read()


async def test_files_of_other_sizes_are_failures(tmp_path: Path) -> None:
    """A file cut short, or with slots that do not fit."""
    path = snapshot(tmp_path / "x.shm", BUSY)
    content = path.read_bytes()
    for size in (0, 3, 11, 12, 100, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ProbeError, match=r"not a snapshot|do not fit"):
            await probe(path).read()
    path.write_bytes(content[:12] + struct.pack("<I", 10**6) + content[16:])
    with pytest.raises(ProbeError, match="has not published"):
        await probe(path).read()


async def test_an_old_snapshot_is_a_dead_scheduler(tmp_path: Path) -> None:
    """SGLang publishes even when idle; one silent rank is enough."""
    path = snapshot(tmp_path / "x.shm", BUSY, {**IDLE, "timestamp": NOW_S - 5.1})

    with pytest.raises(ProbeError, match="rank 1 has been silent"):
        await probe(path).read()


async def test_a_stopped_writer_does_not_stop_the_reader(tmp_path: Path) -> None:
    """A lock that is never released is a failure, not a hang."""
    path = snapshot(tmp_path / "x.shm", BUSY)
    with path.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ProbeError, match="does not let go"):
            await probe(path).read()
    assert await probe(path).read()


async def test_the_only_living_snapshot_is_found(tmp_path: Path) -> None:
    """Files of dead servers lie around; two living servers need a path."""
    finder = probe(directory=tmp_path)
    with pytest.raises(ProbeError, match="no living SGLang snapshot"):
        await finder.read()
    snapshot(tmp_path / "sglang_loads_dead_1.shm", {**BUSY, "timestamp": NOW_S - 600})
    with pytest.raises(ProbeError, match="silent"):
        await finder.read()
    living = snapshot(tmp_path / "sglang_loads_live_2.shm", BUSY)
    assert await finder.read()
    assert finder.path == living

    snapshot(tmp_path / "sglang_loads_live_3.shm", BUSY)
    assert await finder.read()
    with pytest.raises(ProbeError, match=r"several.*probe\.path"):
        await probe(directory=tmp_path).read()


async def test_a_server_that_is_started_anew_is_found_under_its_new_name(tmp_path: Path) -> None:
    """The file carries the name of the process that wrote it; the old one may stay, or be gone."""
    source = probe(directory=tmp_path)
    for number, lies_on in enumerate((True, False, True)):
        path = snapshot(tmp_path / f"sglang_loads_{number}.shm", {**BUSY, "num_waiting_reqs": number})
        if number:
            with pytest.raises(ProbeError):
                await source.read()
        (reading,) = await source.read()
        assert reading.waiting == number
        snapshot(path, {**BUSY, "timestamp": NOW_S - 60.0})
        if not lies_on:
            path.unlink()


async def test_a_neighbour_does_not_stand_in_for_a_server_that_is_started_anew(tmp_path: Path) -> None:
    """Who lived beside it is another engine, whose level would open and close this gate for good."""
    source = probe(directory=tmp_path)
    own = snapshot(tmp_path / "sglang_loads_own_1.shm", {**BUSY, "num_waiting_reqs": 1})
    assert await source.read()
    snapshot(tmp_path / "sglang_loads_other_1.shm", {**BUSY, "num_waiting_reqs": 2})
    assert await source.read()
    own.unlink()
    for _ in range(3):
        with pytest.raises(ProbeError):
            await source.read()
    snapshot(tmp_path / "sglang_loads_own_2.shm", {**BUSY, "num_waiting_reqs": 3})
    (reading,) = await source.read()
    assert reading.waiting == 3


async def test_a_snapshot_of_another_user_is_not_found_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may write to /dev/shm; a path that was set is believed. Later reads look again."""
    path = snapshot(tmp_path / "sglang_loads_a_1.shm", BUSY)
    finder = probe(directory=tmp_path)
    assert await finder.read()
    if os.geteuid() == 0:
        os.chown(path, 4243, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    for searching in (finder, probe(directory=tmp_path)):
        with pytest.raises(ProbeError, match=r"another user.*probe\.path"):
            await searching.read()
    assert await probe(path).read()


async def test_a_missing_file_is_a_failure(tmp_path: Path) -> None:
    """The server may not be up yet."""
    with pytest.raises(ProbeError, match="is SGLang running"):
        await probe(tmp_path / "none.shm").read()


async def test_impossible_figures_are_refused(tmp_path: Path) -> None:
    """A level above 1 or a negative count is not clipped."""
    for wrong in ({"token_usage": 71.0}, {"num_running_reqs": -1}, {"token_usage": float("nan")}):
        with pytest.raises(InvalidReading):
            await probe(snapshot(tmp_path / "x.shm", {**BUSY, **wrong})).read()


def loads(*ranks: Any) -> bytes:
    """Return an answer of /v1/loads."""
    return json.dumps(
        {"timestamp": "2026-11-29T12:00:00+00:00", "version": "0.5.23", "loads": list(ranks)}
    ).encode()


@pytest.mark.parametrize("path", ["", "/", "/v1/loads?include=core"])
async def test_loads_over_http(path: str) -> None:
    """The root of the server is enough."""
    async with serving(answer(loads(BUSY, {**BUSY, "dp_rank": 1, "token_usage": 0.1}))) as server:
        source = SglangLoadsProbe(f"http://127.0.0.1:{server.port}{path}", http=BoundedHttp())
        (reading,) = await source.read()
        await source.aclose()

    assert (reading.kv_usage, reading.running, reading.waiting) == (0.71, 24, 6)
    assert reading.instance == f"127.0.0.1:{server.port}"
    assert server.requests[0].startswith("GET /v1/loads?include=core ")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"loads": 3}',
        b'{"loads": [3]}',
        b'{"loads": []}',
        b'{"loads": [{}]}',
        b"[" * 90_000,
    ],
)
async def test_other_answers_are_failures(body: bytes) -> None:
    """No list of loads, no ranks, no level: none of them is 0 %."""
    async with serving(answer(body)) as server:
        source = SglangLoadsProbe(server.url.removesuffix("/metrics"), http=BoundedHttp())
        with pytest.raises(ProbeError):
            await source.read()
        await source.aclose()
