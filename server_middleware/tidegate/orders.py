"""An operator's orders reach every worker of a server, whichever of them took the connection.

Law of this file: the workers of one server have one parent, and a small file named by it holds the last
order; each worker looks once a second. It is believed only if it is a plain file of our own user's, and
whatever cannot be read is no order. Nothing is written before something is ordered, and a process that is
no worker shares nothing. Gates whose pages have different paths are different gates.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zlib
from pathlib import Path

import msgspec

from tidegate import processes

PREFIX = "tidegate-orders"
MAX_BYTES = 1024


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of a server are to do."""

    mode: str | None = None  # as switched last; `None`: never
    reloads: int = 0  # times the settings were to be read anew
    by: str = ""  # the address of who gave the last one


class Orders:
    """The orders that the workers of one server share.

    Args:
        console_path: of the gate that takes them.
        directory: where the file is; default: the machine's shared memory, or its temporary files.
        proc: the system's processes.
    """

    def __init__(self, console_path: str, directory: Path | None = None, proc: Path = Path("/proc")) -> None:
        shared = Path("/dev/shm")  # noqa: S108 - the machine's shared memory is the point
        self._directory = directory or (shared if shared.is_dir() else Path(tempfile.gettempdir()))
        self._proc = proc
        self._path = self._named(console_path) if processes.is_worker() else None
        self._seen: tuple[int, int] | None = None

    def news(self) -> Order | None:
        """The order in force, if it is new here; called once a second."""
        if self._path is None:
            return None
        try:
            found = self._path.lstat()
        except OSError:
            return None
        if (found.st_mtime_ns, found.st_ino) == self._seen:
            return None
        self._seen = found.st_mtime_ns, found.st_ino
        return _read(self._path)

    def post(self, *, by: str, mode: str | None = None, is_reload: bool = False) -> bool:
        """Give an order to the other workers; `False` if they could not be told. Ask for `news` first.

        Args:
            by: the address of who gives it.
            mode: to be switched to; `None`: it stays.
            is_reload: the settings are to be read anew.
        """
        if self._path is None:
            return False
        last = _read(self._path) or Order()
        order = Order(mode=mode or last.mode, reloads=last.reloads + is_reload, by=by)
        try:
            handle, temporary = tempfile.mkstemp(prefix=".tidegate-", dir=self._directory)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(order))
                Path(temporary).replace(self._path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError:
            return False
        self.news()  # it is none to us
        self._sweep()
        return True

    def reach(self, *, was_posted: bool) -> str:
        """Whom the order has reached, as the end of a sentence; nothing where there is no other worker."""
        others = processes.workers() - 1
        if others <= 0:
            return ""
        whom = "the other worker" if others == 1 else f"the {others} other workers"
        if was_posted:
            return f", and in a second or two in {whom} of this server"
        return (
            f" in this worker alone (process {os.getpid()}): {whom} of this server cannot be told here; "
            "restart it with the setting"
        )

    def _named(self, console_path: str) -> Path | None:
        parent = os.getppid()
        started = _started(self._proc, parent)
        if started is None:
            return None  # a later process of that number would be taken for our parent
        gate = f"{zlib.crc32(console_path.encode()):08x}"
        return self._directory / f"{PREFIX}-{os.getuid()}-{parent}-{started}-{gate}"

    def _sweep(self) -> None:
        """Take away what servers that have ended left behind."""
        for path in self._directory.glob(f"{PREFIX}-{os.getuid()}-*"):
            parent, started = path.name.split("-")[3:5]
            if not parent.isdigit() or _started(self._proc, int(parent)) != started:
                with contextlib.suppress(OSError):
                    path.unlink()


def _started(proc: Path, pid: int) -> str | None:
    """When a process began, in the system's ticks; `None` if there is none, or nobody tells."""
    try:
        line = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[19] if len(fields) > 19 else None


def _read(path: Path) -> Order | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(handle)
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            return None
        return msgspec.json.decode(os.read(handle, MAX_BYTES), type=Order)
    except (OSError, msgspec.DecodeError):
        return None
    finally:
        os.close(handle)
