"""Locks, fsync and write-then-rename: what a kill or a power cut leaves is the old file or the new one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def lock(path: Path) -> int:
    """A handle that holds the lock until `unlock` or the end of the process; `BlockingIOError` if another has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def unlock(handle: int) -> None:
    """Release the lock, also while a child that was forked just now has not yet closed its copy of the handle."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_if_possible(path: Path) -> None:
    """The same where the file system can do it; others are left as they are."""
    with suppress(OSError):
        sync(path)


def publish(draft: Path, path: Path) -> None:
    """Bring a complete draft to disk, then give it its name, which is on disk as well afterwards."""
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there complete or not at all, whatever is killed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
