"""Several server processes before one engine: each has a gate of its own and takes its part.

Law of this file: gates of different processes share nothing but an operator's orders, so a bound that is
not divided holds once in each of them. `processes` divides what is counted (capacity, sequences, seats,
quotas); what is measured of the whole engine (its level, its own queue) stays whole. Where several
processes are found and nobody has said so, that is told at start, never silently accepted.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.core.options import GateOptions, TenantLimits
from tidegate.core.reading import Reading

_FLAGS = re.compile(r"(?<!\S)(?:--workers|-w|--api-server-count|-asc)(?:=|\s+)?(\d{1,4})(?!\S)")
_PROC = Path("/proc")


def part_of(options: GateOptions, processes: int) -> GateOptions:
    """What one of so many processes may use; whole figures are rounded down, to 1 at least."""
    if processes == 1:
        return options
    kv, queue = options.kv, options.queue
    return replace(
        options,
        kv=replace(
            kv,
            capacity_tokens=_whole(kv.capacity_tokens, processes),
            max_sequences=_whole(kv.max_sequences, processes),
            max_prefill_tokens=_whole(kv.max_prefill_tokens, processes),
        ),
        queue=replace(
            queue,
            max_requests=max(1, queue.max_requests // processes),
            max_bytes=max(1, queue.max_bytes // processes),
        ),
        classes=tuple(
            replace(row, max_queued=max(1, row.max_queued // processes)) for row in options.classes
        ),
        tenants={name: _limits(limits, processes) for name, limits in options.tenants.items()},
        default_tenant=_limits(options.default_tenant, processes),
        signal=replace(
            options.signal, blind_concurrency=max(1, options.signal.blind_concurrency // processes)
        ),
        processes=processes,
    )


def part_of_reading(reading: Reading, processes: int) -> Reading:
    """A reading of the whole engine, with the bounds and the pace that come to one of so many processes."""
    if processes == 1:
        return reading
    return replace(
        reading,
        capacity_tokens=_whole(reading.capacity_tokens, processes),
        max_sequences=_whole(reading.max_sequences, processes),
        prompt_tokens=None if reading.prompt_tokens is None else reading.prompt_tokens / processes,
    )


def _whole(figure: int | None, processes: int) -> int | None:
    return None if figure is None else max(1, figure // processes)


def _limits(limits: TenantLimits, processes: int) -> TenantLimits:
    def part(figure: float | None, least: float = 0.0) -> float | None:
        return None if figure is None else max(least, figure / processes)

    return replace(
        limits,
        requests_per_s=part(limits.requests_per_s),
        request_burst=part(limits.request_burst, 1.0),
        tokens_per_s=part(limits.tokens_per_s),
        token_burst=part(limits.token_burst),
        max_concurrency=_whole(limits.max_concurrency, processes),
        max_queued=_whole(limits.max_queued, processes),
    )


def warning(processes: int) -> str | None:
    """What to tell the operator if this process is one of more than `processes`."""
    if not is_worker():
        return None
    found = max(told(sys.argv, os.environ), siblings(_PROC, os.getpid(), os.getppid()))
    if found <= processes:
        return None
    return (
        f"{found} server processes stand before one engine and processes is {processes}: each has a gate "
        f"of its own, so quotas, concurrency and seats are granted {found} times, and a burst may overfill "
        "the KV cache. "
        f"Set processes = {found} (TIDEGATE_PROCESSES={found}), and each takes its part; or run one process."
    )


def is_worker() -> bool:
    """Whether a server has started this process to serve beside others; a program of its own is none."""
    return multiprocessing.parent_process() is not None or "gunicorn" in sys.argv[0]


def workers() -> int:
    """Workers that this server has now, this one included."""
    return siblings(_PROC, os.getpid(), os.getppid()) if is_worker() else 1


def told(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """How many workers the command line or WEB_CONCURRENCY asks for; 1 where neither says."""
    counts = [int(count) for count in _FLAGS.findall(" ".join(argv[1:]))]
    concurrency = environ.get("WEB_CONCURRENCY", "")
    if not counts and concurrency.isascii() and concurrency.isdigit():
        counts = [int(concurrency[:4])]
    return max(counts, default=1)


def siblings(proc: Path, pid: int, parent: int) -> int:
    """Processes of this kind that the parent has, this one included; 1 where the system does not tell."""
    try:
        mine = (proc / str(pid) / "cmdline").read_bytes()
        children = (proc / str(parent) / "task" / str(parent) / "children").read_text().split()
    except OSError:
        return 1
    return max(1, sum(_is_of_a_kind(mine, proc / child / "cmdline") for child in children))


def _is_of_a_kind(mine: bytes, other: Path) -> bool:
    """Forked, spawned by multiprocessing, or named and numbered alike; its resource tracker is none of it."""
    try:
        theirs = other.read_bytes()
    except OSError:
        return False
    return _kind(theirs) == _kind(mine) or (b"spawn_main" in mine and b"spawn_main" in theirs)


def _kind(command: bytes) -> bytes:
    """Without the number that tells workers apart: vLLM's are VLLM::APIServer_0 and VLLM::APIServer_1."""
    return command.rstrip(b"\0").rstrip(b"0123456789")
