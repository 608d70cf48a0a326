"""Opening a state directory: one process at a time, and never a change to what cannot be read."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from fedbandit.errors import FormatError, JournalFailed, StateDirInUse, UnsupportedFormat

VERSION = 2
APPLICATION_ID = 0x46424A31  # "FBJ1"
POSITION = """
CREATE TABLE position (
  id INTEGER PRIMARY KEY CHECK (id = 1), life BLOB NOT NULL, at INTEGER NOT NULL, boot BLOB NOT NULL
)
"""
# Small pages: a commit writes whole ones.
SCHEMA = f"""
PRAGMA page_size = 1024;
CREATE TABLE state (
  id INTEGER PRIMARY KEY CHECK (id = 1), model TEXT NOT NULL, agent TEXT NOT NULL, incarnation TEXT NOT NULL,
  terms BLOB NOT NULL, snapshot BLOB NOT NULL
);
{POSITION};
CREATE TABLE pending (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
PRAGMA journal_mode = WAL;
"""
# Version 1 had a row in `log` for each observation.
TABLES = {1: {"state", "log", "pending"}, 2: {"state", "position", "pending"}}
# Journals made before it existed get it when they are opened; versions that do not know it leave it alone.
KEPT = "CREATE TABLE IF NOT EXISTS kept (sequence INTEGER PRIMARY KEY, growth REAL NOT NULL, packed BLOB NOT NULL)"


class Position(NamedTuple):
    """How far the snapshot goes in the log of `log_file.py`, and in which life of the machine it was made."""

    life: bytes
    at: int
    boot: bytes


def lock_directory(directory: Path) -> int:
    """A handle that keeps everybody else out of the directory until it is closed or the process ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalFailed(f"the state directory {directory} cannot be used: {error}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StateDirInUse(
            f"{directory} is in use by another agent, here or in another process; give each agent its own state_dir"
        ) from None
    return handle


def unlock(handle: int) -> None:
    """Let others in, also while a child that was forked just now has not yet closed its copy of the handle."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def connect_database(path: Path, synchronous: str) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time, with transactions made by hand."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # `Journal.tidy` does it, where nobody waits for a decision
    except sqlite3.Error:
        db.close()
        raise
    return db


def open_database(path: Path, synchronous: str) -> sqlite3.Connection:
    """The journal's database, made if there is none, checked if there is one."""
    try:
        if not path.exists():
            _create(path)
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\x00":
                raise FormatError(f"the state is damaged: {path} is not a journal; nothing was changed")
        db = connect_database(path, synchronous)
        try:
            _check(db, path)
            db.execute(KEPT)
        except BaseException:
            db.close()
            raise
        return db
    except (OSError, sqlite3.OperationalError) as error:
        raise JournalFailed(f"the journal {path} cannot be opened: {error}") from None
    except sqlite3.DatabaseError as error:
        raise FormatError(f"the state is damaged: {path}: {error}; nothing was changed") from None


def _create(path: Path) -> None:
    """Make it beside its place, so that a kill in between leaves no half of one."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    db = sqlite3.connect(draft, isolation_level=None)
    try:
        db.executescript(SCHEMA)
    finally:
        db.close()
    draft.rename(path)


def _check(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise FormatError(f"{path} is some other database; nothing was changed")
    if version not in TABLES:
        raise UnsupportedFormat(f"{path} has format {version}, this fedbandit reads up to {VERSION}: update it")
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if verdict != "ok" or not tables >= TABLES[version]:
        raise FormatError(f"the state is damaged: {path}: {verdict}; nothing was changed")


def version_of(db: sqlite3.Connection) -> int:
    """The layout of a journal."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def read_position(db: sqlite3.Connection) -> Position | None:
    """What the snapshot says about the log; None in a journal without one."""
    row = db.execute("SELECT life, at, boot FROM position").fetchone() if version_of(db) > 1 else None
    return None if row is None else Position(*row)


def old_records(db: sqlite3.Connection, directory: Path) -> list[bytes]:
    """The observations of a journal of version 1."""
    if version_of(db) > 1:
        raise FormatError(
            f"the state is damaged: the journal in {directory} has a snapshot, and does not say how far it goes"
        )
    return [record for (record,) in db.execute("SELECT record FROM log ORDER BY n")]


def write_position(db: sqlite3.Connection, position: Position) -> None:
    """Inside the transaction of a snapshot; a journal of version 1 moves on by it."""
    if version_of(db) == 1:
        db.execute("DROP TABLE log")
        db.execute(POSITION)
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("REPLACE INTO position VALUES (1, ?, ?, ?)", position)
