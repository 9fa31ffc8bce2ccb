"""Starts a real vLLM on the CPU, bare or behind the gate, and stops it again.

Law of this file: one engine at a time, in a process group of its own, and nothing of it outlives the `with`.
Waits end with what they wait for, or with the process; their bounds are only there for what never comes.
Used by tests/engine and by the benchmarks. `scripts/engine_environment` builds what it needs.

vLLM's core process spins. On a machine with few cores whoever measures beside it measures its own starvation,
so the API server's event loop (where the gate lives) is raised above the engine; load generators are to raise
themselves with `raise_priority`. Without the right to do so everything still works, with longer tails.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
MODEL = "tiny"
READ_S = 300.0  # one read of /metrics: a starved server answers late, and that is no fault
READY_S = 900.0
STARTS = 3  # vLLM chooses ports of its own too, and may lose a race for one
SERVER_NICE = -12
LOAD_NICE = -10

# 128 blocks of 128 tokens: a cache of 16,384 tokens, which two dozen long requests fill.
OPTIONS = (
    "--load-format=dummy",
    f"--served-model-name={MODEL}",
    "--max-model-len=2048",
    "--dtype=float32",
    "--enforce-eager",
    "--num-gpu-blocks-override=128",
    "--max-num-seqs=64",
    "--disable-uvicorn-access-log",
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class EngineFailed(RuntimeError):
    """The engine did not become ready; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine."""

    url: str
    log: Path
    pid: int

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name which carry these labels.

        Raises:
            KeyError: there is no such sample.
            httpx.HTTPError: the page did not come.
        """
        text = httpx.get(f"{self.url}/metrics", timeout=READ_S).raise_for_status().text
        values = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        if not values:
            raise KeyError(name)
        return sum(values)

    def wait_idle(self, timeout_s: float = 900) -> None:
        """Returns when nothing runs and nothing waits.

        Raises:
            TimeoutError: there is still work after `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while self.metric("vllm:num_requests_running") or self.metric("vllm:num_requests_waiting"):
            if time.monotonic() > end:
                raise TimeoutError(f"the engine still has work after {timeout_s} s")
            time.sleep(0.2)


def build_environment() -> Path:
    """Runs `scripts/engine_environment` (minutes the first time, a moment afterwards); its directory."""
    done = subprocess.run(
        [ROOT / "scripts/engine_environment"], check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(done.stdout.strip())


def raise_priority(nice: int = LOAD_NICE) -> None:
    """Raises this process above the engine, where that is allowed."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def serve_command(home: Path, *, gated: bool) -> list[str]:
    """The command that serves the tiny model, without `--port`."""
    command = [str(home / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    command += [f"--model={home / 'model'}", *OPTIONS]
    return [*command, "--middleware=tidegate.AdmissionMiddleware"] if gated else command


@contextmanager
def running_engine(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    ready_s: float = READY_S,
) -> Iterator[Engine]:
    """A vLLM server for the length of the `with`.

    Args:
        command: what to start, as from `serve_command`; the port is chosen here and added.
        log: file for its output.
        environment: further variables, for example `TIDEGATE_CONFIG`.
        ready_s: how long its start may take.

    Raises:
        EngineFailed: it ended or was not ready in time.
    """
    variables = _outer_environment() | ENVIRONMENT | dict(environment or {})
    with ExitStack() as stack:
        for tries_left in reversed(range(STARTS)):
            try:
                engine = stack.enter_context(_started(command, log, variables, ready_s))
                break
            except EngineFailed:
                if not tries_left or "ddress already in use" not in log.read_text():
                    raise
        yield engine


@contextmanager
def _started(
    command: Sequence[str], log: Path, variables: Mapping[str, str], ready_s: float
) -> Iterator[Engine]:
    with _reserved_port() as port, log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}"],
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        engine = Engine(f"http://127.0.0.1:{port}", log, process.pid)
        try:
            _wait_ready(engine, process, ready_s)
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, process.pid, SERVER_NICE)
            yield engine
        finally:
            _stop(process)


def _outer_environment() -> dict[str, str]:
    """Ours without TIDEGATE_*: the gate is configured by the caller alone, and refuses variables it does
    not know.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


def _wait_ready(engine: Engine, process: subprocess.Popen[bytes], ready_s: float) -> None:
    end = time.monotonic() + ready_s
    while time.monotonic() < end and process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(f"{engine.url}/health", timeout=5).is_success:
                return
        time.sleep(0.5)
    state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
    tail = "\n".join(engine.log.read_text().splitlines()[-30:])
    raise EngineFailed(f"vLLM {state} after {ready_s} s at most; its log {engine.log} ends:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole group: the core is a child, and would go on spinning."""
    for sign, patience_s in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    process.wait()


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that the kernel gives to nobody else: vLLM binds its own only after many seconds of imports.

    A socket that is bound and does not listen keeps it from those who ask for any port, and lets in who asks
    for this one with SO_REUSEADDR, as vLLM does.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
