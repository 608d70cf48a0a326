"""The interface to the operating system: every durable step of a process passes here, and can be made to fail.

The functions of `os` that change files, the connections of `sqlite3` and the stores into the ring of decisions are
wrapped. Outside of `running` they are what they always are. Inside, each is a step of the process that runs: the fault
that was chosen for it may kill the process there, make the call fail, or let only a part of a write happen. A kill
copies the process's directory at that moment, so that whatever handlers do afterwards is not seen.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbandit.sdk.journal.pending_ring import PendingRing

Files = dict[str, bytes]  # by path within the directory
KILLS = ("kill", "torn kill")
FAILURES = ("no space", "io error", "short write")
MODES = (*KILLS, *FAILURES, "size limit", "interrupt")
SPARED = ("_turn",)  # see `history.OFF`
NEVER_FAIL = frozenset({"store", "done", "message"})
ERRNO = {"no space": errno.ENOSPC, "io error": errno.EIO, "short write": errno.ENOSPC}
SOURCES = ("/src/fedbandit/", "contextlib.py")


class Killed(BaseException):
    """The process ends here; not an `Exception`, so that no handler catches it."""


class Interrupted(KeyboardInterrupt):
    """Raised by a signal handler inside a call."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one call, at its step `at`; `share` is the part of a torn write that arrives."""

    mode: str
    at: int
    share: float = 0.5


class Process:
    """A process under test: its directory, its fault, and its steps."""

    n_hits = 0  # faults that occurred, of all processes

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot = b"boot-0"
        self.n_steps = 0
        self.is_dead = False
        self.agent: Any = None  # the durable agent that it runs, if any
        self.never_fails = NEVER_FAIL
        self.left: Files | None = None  # what a kill left of the directory
        self.on_sync: Callable[[str], None] | None = None
        self.hit = False  # whether the fault occurred
        self._fault: Fault | None = None
        self._until = 0

    def arm(self, fault: Fault | None) -> None:
        """Choose the fault of the next call."""
        self._fault, self._until, self.hit = fault, 0 if fault is None else fault.at, False

    def step(self, kind: str) -> Fault | None:
        """One durable step; raises the fault, or returns it where a part of a write should arrive."""
        self.n_steps += 1
        fault = self._fault
        if fault is None or fault.mode in ("interrupt", "size limit"):
            return None
        if self._until > 0:
            self._until -= 1
            return None
        if fault.mode in FAILURES and kind in self.never_fails:
            return None  # a write to mapped memory cannot fail: the next step that can does
        self._came()
        is_write = kind in ("write", "commit")
        if fault.mode == "kill" or (fault.mode == "torn kill" and not is_write):
            self.die()
        if fault.mode in KILLS or (fault.mode == "short write" and kind == "write"):
            return fault
        if kind in ("sql", "commit", "read"):
            full = fault.mode != "io error"
            raise sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
        raise OSError(ERRNO[fault.mode], os.strerror(ERRNO[fault.mode]))

    def die(self, change: Callable[[Files], None] | None = None) -> None:
        """SIGKILL: the next process finds the directory as it is now."""
        if not self.is_dead:
            self.is_dead = True
            self.left = read_tree(self.folder)
            if change is not None:
                change(self.left)
        raise Killed

    def profile(self, frame: Any, event: str, _: Any) -> None:
        """Raise where CPython would call a signal handler: as a function begins, or as a call to C has returned."""
        if event not in ("call", "c_return") or _RUNNING.process is not self:
            return
        if frame.f_code.co_name in SPARED:
            return
        name = frame.f_code.co_filename
        if not any(part in name for part in SOURCES):
            return
        if self._until > 0:
            self._until -= 1
            return
        sys.setprofile(None)
        self._came()
        raise Interrupted

    def _came(self) -> None:
        self._fault, self.hit = None, True
        Process.n_hits += 1


class _Running:
    process: Process | None = None


_RUNNING = _Running()


@contextmanager
def running(process: Process | None) -> Iterator[None]:
    """Run the block as this process, with its fault."""
    before, _RUNNING.process = _RUNNING.process, process
    fault = None if process is None else process._fault
    mode = "" if fault is None else fault.mode
    sizes = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = sizes[1]
    if process is not None and fault is not None and mode == "size limit":
        longest = max((path.stat().st_size for path in process.folder.glob("*-wal")), default=0)
        limit = longest + 64 * fault.at
    if limit != sizes[0]:  # the limit of this process only
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, sizes[1]))
    try:
        if mode == "interrupt" and process is not None:
            sys.setprofile(process.profile)
        yield
    finally:
        if mode == "interrupt":
            sys.setprofile(None)
        if limit != sizes[0]:
            resource.setrlimit(resource.RLIMIT_FSIZE, sizes)
        _RUNNING.process = before
        if process is not None and before is not process:
            process._fault = None


def current() -> Process | None:
    """The process that runs now."""
    return _RUNNING.process


# -- files


def read_tree(folder: Path) -> Files:
    """All files of a directory. The index of SQLite's log is left out: the next process rebuilds it."""
    found: Files = {}
    for entry in os.scandir(folder):
        if entry.is_dir():
            found.update({f"{entry.name}/{name}": data for name, data in read_tree(Path(entry.path)).items()})
        elif not entry.name.endswith("-shm"):
            with open(entry.path, "rb") as file:  # noqa: PTH123 - half the time of a Path
                found[entry.name] = file.read()
    return found


def write_tree(files: Files, folder: Path) -> Path:
    """A new directory with these files."""
    _REAL["mkdir"](folder)
    for name, data in files.items():
        if "/" in name:
            (folder / name).parent.mkdir(exist_ok=True)
        with open(f"{folder}/{name}", "wb") as file:  # noqa: PTH123
            file.write(data)
    return folder


# -- the wrapped functions of `os`

_REAL: dict[str, Any] = {
    name: getattr(os, name)
    for name in ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "replace", "unlink", "mkdir", "rmdir",
                 "posix_fallocate", "sendfile", "copy_file_range", "chmod", "fchmod", "link", "open", "urandom")
    if hasattr(os, name)
}  # fmt: skip
CHANGES = ("ftruncate", "rename", "replace", "unlink", "mkdir", "rmdir", "posix_fallocate", "link")


def _changing(name: str) -> Callable[..., Any]:
    real = _REAL[name]

    def change(*arguments: Any, **options: Any) -> Any:
        process = _RUNNING.process
        if process is None:
            return real(*arguments, **options)
        process.step(name)
        result = real(*arguments, **options)
        process.step("done")  # so that a kill is possible after the last step
        return result

    return change


def _pwrite(handle: int, data: bytes, at: int) -> int:
    process = _RUNNING.process
    if process is None:
        return int(_REAL["pwrite"](handle, data, at))
    fault = process.step("write")
    if fault is None:
        n_written = int(_REAL["pwrite"](handle, data, at))
        process.step("done")
        return n_written
    part = data[: int(len(data) * fault.share)]
    n_written = int(_REAL["pwrite"](handle, part, at)) if part else 0
    if fault.mode in KILLS:
        process.die()
    return n_written


def _sendfile(out: int, source: int, offset: int, count: int) -> int:
    """How `shutil.copyfile` copies; a torn copy leaves a part."""
    process = _RUNNING.process
    if process is None:
        return int(_REAL["sendfile"](out, source, offset, count))
    fault = process.step("write")
    if fault is None:
        return int(_REAL["sendfile"](out, source, offset, count))
    size = os.fstat(source).st_size
    _REAL["sendfile"](out, source, offset, max(int(size * fault.share), 1))
    if fault.mode in KILLS:
        process.die()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _syncing(name: str) -> Callable[[int], None]:
    real = _REAL[name]

    def sync(handle: int) -> None:
        process = _RUNNING.process
        if process is None:
            real(handle)
            return
        process.step("sync")
        if process.on_sync is not None:  # nothing is really synced: only the request counts
            process.on_sync(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115 - it is no Path
        process.step("done")

    return sync


def _open(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
    process = _RUNNING.process
    if process is not None and flags & os.O_CREAT:
        process.step("create")
    return int(_REAL["open"](path, flags, mode, **options))


# -- SQLite


class SteppedConnection(sqlite3.Connection):
    """A connection with a step before each statement, and after those that end a transaction or stand alone."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:  # type: ignore[override]
        process = _RUNNING.process
        if process is None:
            return super().execute(sql, *arguments)
        if sql == "PRAGMA page_size = 16384":
            sql = "PRAGMA page_size = 1024"  # a store of a few rows, which is copied often
        if sql == "COMMIT":
            self._commit(process)
            return super().execute("SELECT 1")
        process.step("read" if sql.startswith(("SELECT", "PRAGMA")) else "sql")
        cursor = super().execute(sql, *arguments)
        if not self.in_transaction:
            if "wal_checkpoint" in sql and process.on_sync is not None:
                process.on_sync("checkpoint")
            process.step("done")
        return cursor

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:  # type: ignore[override]
        if _RUNNING.process is not None:
            _RUNNING.process.step("sql")
        return super().executemany(sql, *arguments)

    def executescript(self, sql: str) -> sqlite3.Cursor:
        if _RUNNING.process is not None:
            for statement in sql.split(";"):
                if statement.strip():
                    self.execute(statement)
            return super().execute("SELECT 1")
        return super().executescript(sql)

    def backup(self, target: sqlite3.Connection, **options: Any) -> None:
        if _RUNNING.process is not None:
            _RUNNING.process.step("sql")
        super().backup(target, **options)
        if _RUNNING.process is not None:
            _RUNNING.process.step("done")

    def _commit(self, process: Process) -> None:
        fault = process.step("commit")
        before = self._log_sizes(process) if fault is not None else {}
        super().execute("COMMIT")
        if fault is not None:  # the log of SQLite only grows in a commit: a torn one is a shorter one
            process.die(lambda files: _tear(files, before, fault.share))
        if process.on_sync is not None:
            process.on_sync("commit")
        process.step("done")

    def _log_sizes(self, process: Process) -> dict[str, int]:
        return {name: len(data) for name, data in read_tree(process.folder).items() if name.endswith("-wal")}


def _tear(files: Files, before: dict[str, int], share: float) -> None:
    for name, size in before.items():
        data = files.get(name, b"")
        if len(data) > size:
            files[name] = data[: size + int((len(data) - size) * share)]


_connect = sqlite3.connect


def _stepped_connect(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
    if _RUNNING.process is None:
        return _connect(database, *arguments, **options)
    _RUNNING.process.step("sql")
    options.setdefault("factory", SteppedConnection)
    return _connect(database, *arguments, **options)


# -- the ring of decisions, which is mapped memory


def _stored(method: Callable[..., Any]) -> Callable[..., Any]:
    def store(self: PendingRing, *arguments: Any) -> Any:
        process = _RUNNING.process
        if process is not None:
            process.step("store")
        result = method(self, *arguments)
        if process is not None:
            process.step("store")
        return result

    return store


@contextmanager
def wrapped() -> Iterator[None]:
    """Replace the functions of the operating system within the block."""
    ring = {name: getattr(PendingRing, name) for name in ("put", "settle")}
    os_wrapped: dict[str, Any] = {name: _changing(name) for name in CHANGES if name in _REAL}
    os_wrapped |= {"pwrite": _pwrite, "sendfile": _sendfile, "open": _open}
    os_wrapped |= {name: _syncing(name) for name in ("fsync", "fdatasync") if name in _REAL}
    for name, function in os_wrapped.items():
        setattr(os, name, function)
    for name, method in ring.items():
        setattr(PendingRing, name, _stored(method))
    sqlite3.connect = _stepped_connect  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = _connect
        for name, method in ring.items():
            setattr(PendingRing, name, method)
        for name in os_wrapped:
            setattr(os, name, _REAL[name])
