"""Opening a state directory: one process at a time, and never a change to what cannot be read."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from fedbandit.durable_files import lock, sync_if_possible
from fedbandit.errors import FormatError, JournalFailed, StateDirInUse, UnsupportedFormat

logger = logging.getLogger("fedbandit.sdk")
VERSION = 1
# All that an agent writes here; the drafts are files on their way to their place.
FILES = frozenset({"lock", "journal.db", "journal.db-wal", "journal.db-shm", "observations", "decisions"})
IDENTITY = "identity"  # of an enrolled agent
FILES |= {"journal.new", "observations.new", "decisions.new", IDENTITY, f"{IDENTITY}.new"}
APPLICATION_ID = 0x46424A31  # "FBJ1"
# Small pages: a commit writes whole ones.
SCHEMA = f"""
PRAGMA page_size = 1024;
CREATE TABLE state (
  id INTEGER PRIMARY KEY CHECK (id = 1), model TEXT NOT NULL, agent TEXT NOT NULL, incarnation TEXT NOT NULL,
  description BLOB NOT NULL, snapshot BLOB NOT NULL
);
CREATE TABLE position (
  id INTEGER PRIMARY KEY CHECK (id = 1), log_id BLOB NOT NULL, at INTEGER NOT NULL, boot BLOB NOT NULL
);
CREATE TABLE pending (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE kept (sequence INTEGER PRIMARY KEY, growth REAL NOT NULL, packed BLOB NOT NULL, drift TEXT NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
PRAGMA journal_mode = WAL;
"""
TABLES = {"state", "position", "pending", "kept"}


class Position(NamedTuple):
    """How far the snapshot goes in which observation log, and the boot of the machine that it was made in."""

    log_id: bytes
    at: int
    boot: bytes


def lock_directory(directory: Path) -> int:
    """A handle that keeps everybody else out of the directory until it is closed or the process ends."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = lock(directory / "lock")
    except BlockingIOError:
        raise StateDirInUse(
            f"{directory} is in use by another agent, here or in another process; give each agent its own state_dir"
        ) from None
    except OSError as error:
        raise JournalFailed(f"the state directory {directory} cannot be used: {error}") from None
    keep_private(directory)
    return handle


def keep_private(directory: Path) -> None:
    """Only the owner reads what is here: contexts and rewards as they were observed.

    A copy may have other modes. A directory that holds other files, too, keeps its mode: it was not made for this
    agent alone.
    """
    try:
        names = {path.name for path in directory.iterdir()}
        for name in FILES & names:
            (directory / name).chmod(0o600)
        if names <= FILES:
            directory.chmod(0o700)
    except OSError as error:  # a volume that belongs to somebody else
        logger.warning("the state directory %s cannot be made private: %s", directory, error)


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
            require_no_past(path.parent, f"{path.name} is missing")
            _create(path)
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\x00":
                raise FormatError(f"the state is damaged: {path} is not a journal; nothing was changed")
        db = connect_database(path, synchronous)
        try:
            _check(db, path)
        except BaseException:
            db.close()
            raise
        return db
    except (OSError, sqlite3.OperationalError) as error:
        raise JournalFailed(f"the journal {path} cannot be opened: {error}") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # sqlite3 decodes what a damaged schema says
        raise FormatError(f"the state is damaged: {path}: {error}; nothing was changed") from None


def _create(path: Path) -> None:
    """Make it beside its place, so that a kill in between leaves no half of one."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # its WAL will be like it
    db = sqlite3.connect(draft, isolation_level=None)
    try:
        db.executescript(SCHEMA)
    finally:
        db.close()
    sync_if_possible(draft)
    draft.rename(path)
    sync_if_possible(path.parent)  # before anything else is made beside it


def require_no_past(directory: Path, why: str) -> None:
    """`FormatError` if the files beside the database say that there was a snapshot, which it does not have."""
    log, ring = directory / "observations", directory / "decisions"
    if (log.exists() and _has_records(log.read_bytes())) or (ring.exists() and _has_decisions(ring.read_bytes())):
        raise FormatError(
            f"the state is damaged: {why} in {directory}, and with it who this agent is; what lies beside it is of no "
            f"use without. Nothing was changed; bring the whole directory back, or begin anew in another one"
        )


def _has_records(log: bytes) -> bool:
    """Whether anything was ever logged: a record, or a first position beyond 0."""
    return len(log) > 64 or any(log[24:32])


def _has_decisions(ring: bytes) -> bool:
    """Whether any slot was ever used."""
    n_slots = int.from_bytes(ring[16:24], "little")
    return any(ring[64 : 64 + 8 * n_slots])


def _check(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise FormatError(f"{path} is some other database; nothing was changed")
    if version != VERSION:
        raise UnsupportedFormat(f"{path} has format {version}, this fedbandit reads format {VERSION}")
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if verdict != "ok" or not tables >= TABLES:
        raise FormatError(f"the state is damaged: {path}: {verdict}; nothing was changed")


def read_position(db: sqlite3.Connection) -> Position | None:
    """How far the snapshot goes in the log; None in a journal without a snapshot."""
    row = db.execute("SELECT log_id, at, boot FROM position").fetchone()
    return None if row is None else Position(*row)


def write_position(db: sqlite3.Connection, position: Position) -> None:
    """Inside the transaction of a snapshot."""
    db.execute("REPLACE INTO position VALUES (1, ?, ?, ?)", position)
