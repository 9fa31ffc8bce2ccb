"""Orders that reach every worker of a server: what is shared, and what is believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate import orders, processes
from tidegate.orders import MAX_BYTES, Order, Orders

PATH = "/tidegate"


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of three workers."""
    monkeypatch.setattr(processes, "is_worker", lambda: True)
    monkeypatch.setattr(processes, "workers", lambda: 3)


def pair(directory: Path) -> tuple[Orders, Orders]:
    return Orders(PATH, directory), Orders(PATH, directory)


def only_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def test_what_one_posts_the_other_hears_once(tmp_path: Path) -> None:
    """And the one that posted it does not hear itself."""
    one, other = pair(tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is written before something is ordered"
    assert other.news() is None
    assert one.post(by="10.0.0.1", mode="shadow")
    assert one.news() is None
    assert other.news() == Order(mode="shadow", by="10.0.0.1")
    assert other.news() is None
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_later_order_keeps_what_it_does_not_change(tmp_path: Path) -> None:
    """A worker that begins later hears both."""
    one, other = pair(tmp_path)
    one.post(by="a", mode="off")
    other.news()
    other.post(by="b", is_reload=True)
    other.post(by="c", is_reload=True)
    assert Orders(PATH, tmp_path).news() == Order(mode="off", reloads=2, by="c")
    assert one.news() == Order(mode="off", reloads=2, by="c")


def test_gates_with_pages_elsewhere_are_other_gates(tmp_path: Path) -> None:
    """A mounted app may have a gate of its own."""
    other = Orders("/elsewhere", tmp_path)
    Orders(PATH, tmp_path).post(by="a", mode="off")
    assert other.news() is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"mode": 7}', b"\xff", b'{"by": "' + b"x" * MAX_BYTES + b'"}']
)
def test_what_cannot_be_read_is_no_order(tmp_path: Path, content: bytes) -> None:
    """Nor an error; the next order is heard again."""
    one, other = pair(tmp_path)
    one.post(by="a", mode="off")
    only_file(tmp_path).write_bytes(content)
    assert other.news() is None
    assert one.post(by="a", mode="shadow")
    assert other.news() == Order(mode="shadow", by="a")


def test_only_a_plain_file_of_our_own_is_believed(tmp_path: Path) -> None:
    """The directory may be everybody's, and the name can be guessed."""
    one, other = pair(tmp_path)
    one.post(by="a", mode="off")
    path = only_file(tmp_path)
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    assert other.news() is None
    path.unlink()
    os.mkfifo(path)
    assert other.news() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    """Whatever it says."""
    one, other = pair(tmp_path)
    one.post(by="a", mode="off")
    os.chown(only_file(tmp_path), 12_345, 12_345)
    assert other.news() is None


def test_what_servers_left_behind_is_taken_away(tmp_path: Path) -> None:
    """When the next order is written; a living server's and a stranger's files stay."""
    living = f"{os.getpid()}-{orders._started(Path('/proc'), os.getpid())}"
    left = [f"{orders.PREFIX}-{os.getuid()}-{parent}-abc" for parent in ("4999999-7", f"{os.getpid()}-0")]
    stay = [f"{orders.PREFIX}-{os.getuid()}-{living}-abc", f"{orders.PREFIX}-77777-4999999-7-abc", "level"]
    for name in left + stay:
        (tmp_path / name).touch()
    one = Orders(PATH, tmp_path)
    one.post(by="a", mode="off")
    names = {path.name for path in tmp_path.iterdir()}
    assert names.isdisjoint(left)
    assert names.issuperset(stay)
    assert len(names) == len(stay) + 1


def test_the_answer_says_whom_the_order_has_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All, this one alone, or there is nobody else."""
    assert "in the 2 other workers" in Orders(PATH, tmp_path).reach(was_posted=True)
    unknown = Orders(PATH, tmp_path, proc=tmp_path / "no-proc")
    assert not unknown.post(by="a", mode="off")
    assert unknown.news() is None
    assert f"in this worker alone (process {os.getpid()})" in unknown.reach(was_posted=False)
    assert not Orders(PATH, tmp_path / "nowhere").post(by="a", mode="off")
    monkeypatch.setattr(processes, "workers", lambda: 1)
    assert unknown.reach(was_posted=False) == ""


def test_a_process_that_is_no_worker_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers started from one shell have one parent, too."""
    monkeypatch.setattr(processes, "is_worker", lambda: False)
    one, other = pair(tmp_path)
    assert not one.post(by="a", mode="off")
    assert other.news() is None
    assert list(tmp_path.iterdir()) == []
