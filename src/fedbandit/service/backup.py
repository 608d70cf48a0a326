"""Copies of the embedded store: made while the server runs, brought back while it does not."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from fedbandit.errors import AlreadyExists, FormatError, StoreUnavailable
from fedbandit.service.stores.sqlite import FILE_NAME, LOCK_NAME, locked

BESIDE = ("-wal", "-shm")  # a log left beside another database would be played into it


def backup(data: Path, out: Path) -> None:
    """A copy of the store as of one moment, whole and on disk when this returns; the server may be at work."""
    source = data / FILE_NAME
    if not source.exists():
        raise StoreUnavailable(f"there is no store in {data}")
    if out.exists():
        raise AlreadyExists(f"{out} exists already; a backup is never written over")
    draft = out.with_name(out.name + ".part")
    draft.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(source, timeout=30.0)) as store, closing(sqlite3.connect(draft)) as copy:
            store.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        check(draft)
        draft.chmod(0o600)
        _sync(draft)
        draft.rename(out)
        _sync(out.parent)
    except (OSError, sqlite3.Error) as error:
        draft.unlink(missing_ok=True)
        raise StoreUnavailable(f"the backup failed: {error}") from None


def restore(data: Path, copy: Path) -> Path | None:
    """Put a backup in the place of the store; where the old one went, if there was one. The server must be stopped."""
    check(copy)
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(data / LOCK_NAME):
        draft = data / f"{FILE_NAME}.part"
        shutil.copyfile(copy, draft)
        draft.chmod(0o600)
        _sync(draft)
        aside = _put_aside(data)
        draft.rename(data / FILE_NAME)
        _sync(data)
    return aside


def check(path: Path) -> None:
    """`FormatError` unless the file is a store and whole."""
    if not path.exists():
        raise FormatError(f"there is no file {path}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as found:
            (verdict,) = found.execute("PRAGMA integrity_check(1)").fetchone()
            found.execute("SELECT version FROM schema_version").fetchone()
    except sqlite3.Error as error:
        raise FormatError(f"{path} is not a backup of a server: {error}") from None
    if verdict != "ok":
        raise FormatError(f"{path} is damaged: {verdict}")


def _put_aside(data: Path) -> Path | None:
    """Move the old store and its log into a folder of their own; the log first belongs to the old one only."""
    old = [path for path in (data / (FILE_NAME + end) for end in ("", *BESIDE)) if path.exists()]
    if not old:
        return None
    n = 1
    while (aside := data / f"before-restore-{n}").exists():
        n += 1
    aside.mkdir(mode=0o700)
    for path in old:
        path.rename(aside / path.name)
    return aside


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
