"""Several processes before one engine (case Q16): each takes its part, or the operator is told."""

from __future__ import annotations

import http.client
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.core.driver import Driver
from tests.ports import free_port
from tests.server.processes import PATIENCE_S, ROOT
from tests.server.workers_app import BURST
from tidegate import Reading, Settings
from tidegate.processes import part_of_reading, siblings, told, warning

SETTINGS = Settings.load(
    kv={"capacity_tokens": 100_000, "max_sequences": 64},
    queue={"max_requests": 100, "max_bytes": 1_000},
    tenants=[
        {
            "name": "t",
            "requests_per_s": 10,
            "request_burst": 1,
            "tokens_per_s": 900,
            "token_burst": 3_000,
            "max_concurrency": 7,
            "max_queued": 2,
        }
    ],
)


def test_each_takes_its_part_of_every_bound() -> None:
    """Of three processes each has a third, rounded down, and never nothing."""
    parts = Settings.load(**{**SETTINGS.model_dump(), "processes": 3}).gate_options()
    assert (parts.kv.capacity_tokens, parts.kv.max_sequences) == (33_333, 21)
    assert (parts.queue.max_requests, parts.queue.max_bytes) == (33, 333)
    assert [row.max_queued for row in parts.classes] == [21, 85, 170, 170]
    limits = parts.tenants["t"]
    assert limits.requests_per_s == pytest.approx(10 / 3)
    assert (limits.tokens_per_s, limits.token_burst) == (300, 1_000)
    assert (limits.request_burst, limits.max_concurrency, limits.max_queued) == (1, 2, 1)
    assert parts.is_shared


def test_one_process_has_everything() -> None:
    """The default changes nothing."""
    options = SETTINGS.gate_options()
    assert options.kv is SETTINGS.kv
    assert not options.is_shared


def test_the_level_is_the_engines_and_the_room_is_divided() -> None:
    """A reading of the whole: its level and its queue stay, its capacity and its pace are shared."""
    reading = Reading(
        kv_usage=0.4, waiting=3, running=5, capacity_tokens=1_001, max_sequences=9, prompt_tokens=60.0
    )
    part = part_of_reading(reading, 2)
    assert (part.kv_usage, part.waiting, part.running) == (0.4, 3, 5)
    assert (part.capacity_tokens, part.max_sequences, part.prompt_tokens) == (500, 4, 30.0)
    assert part_of_reading(reading, 1) is reading


def test_what_the_others_do_not_use_is_no_saving_of_ours() -> None:
    """Alone on a shared engine the level is low for our part; prompts must not seem cheap by that."""
    shares = {}
    for processes, capacity in ((1, 1_000), (2, 2_000)):  # the same part, said in two ways
        d = Driver(Settings.load(processes=processes, kv={"capacity_tokens": capacity}).gate_options())
        ticket = d.admit(prompt_tokens=400, max_output_tokens=500).ticket
        d.progress(ticket, 1)
        for _ in range(60):
            d.now += 1.0
            d.read(0.2, running=1, waiting=0)
        shares[processes] = d.instance.calibration.kp
    assert shares[1] < 0.6
    assert shares[2] == 1.0


@pytest.mark.parametrize(
    ("argv", "environ", "count"),
    [
        ("uvicorn app:app --workers 4", {}, 4),
        ("uvicorn app:app --workers=4", {"WEB_CONCURRENCY": "2"}, 4),
        ("gunicorn -w 3 app:app", {}, 3),
        ("gunicorn -w3 app:app", {}, 3),
        ("vllm serve m --api-server-count 2", {}, 2),
        ("uvicorn app:app", {"WEB_CONCURRENCY": "5"}, 5),
        ("uvicorn app:app", {"WEB_CONCURRENCY": "many"}, 1),
        ("uvicorn app:app --workers many", {}, 1),
        ("uvicorn app:app", {}, 1),
        ("vllm serve org/Model-7B-w8a8 --api-server-count 2", {}, 2),
        ("vllm serve org/model-w4-g128 --served-model-name m-w16", {}, 1),
        ("uvicorn app:app --max-workers 8", {}, 1),
    ],
)
def test_what_the_command_line_says(argv: str, environ: dict[str, str], count: int) -> None:
    """As the servers read it: the option first, then the variable."""
    assert told(argv.split(), environ) == count


def _proc(root: Path, parent: str, children: dict[str, bytes]) -> Path:
    (root / parent / "task" / parent).mkdir(parents=True)
    (root / parent / "task" / parent / "children").write_text(" ".join([*children, "99"]))
    for pid, command in children.items():
        (root / pid).mkdir()
        (root / pid / "cmdline").write_bytes(command)
    return root


def test_what_the_parents_children_say(tmp_path: Path) -> None:
    """Spawned, forked or named alike are workers; a tracker, a stranger and one that has ended are not."""
    spawned = {"2": b"python\0spawn_main(pipe=3)", "3": b"python\0spawn_main(pipe=4)", "4": b"tracker"}
    assert siblings(_proc(tmp_path / "a", "1", spawned), 2, 1) == 2
    named = {"2": b"VLLM::APIServer_0\0\0", "3": b"VLLM::APIServer_11\0", "4": b"VLLM::EngineCore\0"}
    assert siblings(_proc(tmp_path / "c", "1", named), 2, 1) == 2
    forked = {"2": b"gunicorn\0app", "3": b"gunicorn\0app", "4": b"gunicorn\0other"}
    assert siblings(_proc(tmp_path / "b", "1", forked), 2, 1) == 2
    assert siblings(tmp_path / "nowhere", 2, 1) == 1


def test_the_warning_names_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in a worker, only above what was set, with the very words to write."""
    monkeypatch.setattr(sys, "argv", ["gunicorn", "-w", "3", "app:app"])
    said = warning(1)
    assert said is not None
    assert "processes is 1" in said
    assert "TIDEGATE_PROCESSES=3" in said
    assert warning(3) is None
    monkeypatch.setattr(sys, "argv", ["my_program", "--workers", "3"])
    assert multiprocessing.parent_process() is None
    assert warning(1) is None, "a program of its own may mean anything by that"


@contextmanager
def workers(log: IO[bytes], **environ: str) -> Iterator[int]:
    """The app in two uvicorn workers, both answering."""
    port = free_port()
    command = ["uvicorn", "tests.server.workers_app:app", "--workers", "2", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, **environ}, stderr=log
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        seen: set[str] = set()
        while len(seen) < 2:
            assert time.monotonic() < deadline, f"only {seen} answered"
            seen.update(text for status, text in ask(port, 8) if status == 200)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def ask(port: int, count: int, key: str = "") -> list[tuple[int, str]]:
    """So many requests at once, each on a connection of its own."""

    def one(_: int) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            link.request("POST", "/v1/completions", b'{"prompt": "x"}', headers)
            response = link.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, "not up yet"
        finally:
            link.close()

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(count)))


def test_q16_two_workers_grant_a_quota_once(tmp_path: Path) -> None:
    """Q16: told that they are two, they grant together what is configured, and say nothing."""
    with (tmp_path / "log").open("wb") as log, workers(log, TIDEGATE_PROCESSES="2") as port:
        admitted: list[str] = []
        for _ in itertools.repeat(None, 10):
            admitted += [text for status, text in ask(port, 8, "t") if status == 200]
        assert BURST // 2 <= len(admitted) <= BURST
        assert max(map(admitted.count, admitted)) <= BURST // 2
    assert b"TIDEGATE_PROCESSES" not in (tmp_path / "log").read_bytes()


def test_the_mode_is_switched_in_every_worker(tmp_path: Path) -> None:
    """Whichever of them takes the connection; a worker that begins later takes it over."""
    token = "correct-horse-battery"
    with (tmp_path / "log").open("wb") as log, workers(log, TIDEGATE_CONSOLE__ADMIN_TOKEN=token) as port:
        headers = {"authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{port}/tidegate"
        answer = httpx.put(f"{url}/mode", content="shadow", headers=headers, timeout=PATIENCE_S)
        assert answer.text == "mode is shadow, and in a second or two in the other worker of this server\n"
        until_modes(url, {"shadow"})
        victim = int(ask(port, 1)[0][1])
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while len({text for status, text in ask(port, 8) if status == 200} - {str(victim)}) < 2:
            assert time.monotonic() < deadline, "no new worker came"
        until_modes(url, {"shadow"})
    assert "by the operator at 127.0.0.1, through another worker" in (tmp_path / "log").read_text()


def until_modes(url: str, wanted: set[str]) -> None:
    """Ask many times, each on a connection of its own, until all answers are of these modes."""
    deadline = time.monotonic() + PATIENCE_S
    while {mode_at(url) for _ in range(16)} != wanted:
        assert time.monotonic() < deadline


def mode_at(url: str) -> str:
    """The mode of whichever worker answers."""
    state = httpx.get(f"{url}/state.json?history=0", timeout=PATIENCE_S).json()
    assert state["workers"] in (1, 2)
    return str(state["mode"])


def test_q16_two_workers_that_were_not_told_warn(tmp_path: Path) -> None:
    """Q16: never silent; the line says what to set."""
    with (tmp_path / "log").open("wb") as log, workers(log):
        pass
    said = (tmp_path / "log").read_text()
    assert "2 server processes stand before one engine" in said
    assert "TIDEGATE_PROCESSES=2" in said
