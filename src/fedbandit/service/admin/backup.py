"""Backups of the SQLite store: made while the server runs, restored while it is stopped."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fedbandit.durable_files import publish, unlock
from fedbandit.errors import AlreadyExists, FormatError, StoreUnavailable
from fedbandit.service.stores.sqlite.replacement import FILE_NAME, is_interrupted, replace_store
from fedbandit.service.stores.sqlite.store import lock_directory

RESTORED = "restored"  # exists from a restore to the next start of the server, which records the event


def backup(data: Path, out: Path) -> None:
    """Write a consistent copy of the store, durable when this returns; the server may be running."""
    source = data / FILE_NAME
    if is_interrupted(data):
        raise StoreUnavailable(
            f"a restore into {data} was interrupted: start the server, or restore again, and it will be completed"
        )
    if not source.exists():
        raise StoreUnavailable(f"there is no store in {data}")
    if out.exists():
        raise AlreadyExists(f"{out} exists already; a backup is never overwritten")
    draft = out.with_name(out.name + ".part")
    try:
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)  # before it has content
        with closing(sqlite3.connect(source, timeout=30.0)) as store, closing(sqlite3.connect(draft)) as copy:
            store.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        check(draft)
        publish(draft, out)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):  # the next backup to this path removes it
            draft.unlink(missing_ok=True)
        raise StoreUnavailable(f"the backup failed: {error}") from None


def restore(data: Path, copy: Path) -> Path | None:
    """Replace the store by a backup; the path of the old one, if there was one. The server must be stopped.

    A kill at any moment leaves the old store or the new one; see `stores/sqlite/replacement.py`.
    """
    check(copy)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = lock_directory(data)
        try:
            old = replace_store(data, copy)
            (data / RESTORED).touch(mode=0o600)  # a kill before this loses the event, nothing else
            return old
        finally:
            unlock(handle)
    except OSError as error:
        raise StoreUnavailable(f"the restore failed, and the store in {data} is as it was: {error}") from None


def was_restored(data: Path) -> bool:
    """Whether the store was restored since the last start of a server; True once."""
    try:
        (data / RESTORED).unlink()
    except OSError:
        return False
    return True


def check(path: Path) -> None:
    """Raise `FormatError` unless the file is an intact store."""
    if not path.exists():
        raise FormatError(f"there is no file {path}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as found:
            (verdict,) = found.execute("PRAGMA integrity_check(1)").fetchone()
            found.execute("SELECT version FROM schema_version").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 decodes the text of a damaged schema
        raise FormatError(f"{path} is not a backup of a server: {error}") from None
    if verdict != "ok":
        raise FormatError(f"{path} is damaged: {verdict}")
