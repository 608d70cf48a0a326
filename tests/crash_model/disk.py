"""The file operations of an agent's log, step by step, and what a power cut leaves of it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from fedbandit.sdk.journal import journal, observation_log

if TYPE_CHECKING:
    from tests.crash_model.parts import Fuse

LOG = "observations"
MAX_LOG_BYTES = 150  # two or three observations, so that the log is rewritten often


class WatchedFiles:
    """The module `os` for the log: a step before, within and after each write, and around each sync and cut.

    `n_synced` is how many bytes of the log a power cut cannot take.
    """

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self.n_synced = 0

    def pwrite(self, handle: int, data: bytes, at: int) -> int:
        self._fuse.step()
        os.pwrite(handle, data[: len(data) // 2], at)
        self._fuse.step()  # torn
        n_written = os.pwrite(handle, data, at)
        self._fuse.step()
        return n_written

    def ftruncate(self, handle: int, length: int) -> None:
        self._fuse.step()
        os.ftruncate(handle, length)
        self._fuse.step()

    def fsync(self, handle: int) -> None:
        """Sync the log, its replacement before the rename, or the directory after it."""
        self._fuse.step()
        os.fsync(handle)
        self.note_sync(handle)
        self._fuse.step()

    def fdatasync(self, handle: int) -> None:
        self._fuse.step()
        os.fdatasync(handle)
        self.note_sync(handle)
        self._fuse.step()

    def note_sync(self, handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").is_file():
            self.n_synced = os.fstat(handle).st_size

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def watching(files: WatchedFiles) -> Iterator[None]:
    """The journal's own code, with these files under its log."""
    with patch.object(observation_log, "os", files), patch.object(journal, "MAX_LOG_BYTES", MAX_LOG_BYTES):
        yield


def cut_power(directory: Path, log: bytes, n_synced: int, rng: Random) -> None:
    """Another boot; of the bytes of the log that were not synced any may be missing, also in the middle."""
    kept = bytearray(log[: rng.randint(min(n_synced, len(log)), len(log))])
    if len(kept) > n_synced and rng.random() < 0.5:
        begin = rng.randint(n_synced, len(kept) - 1)
        end = rng.randint(begin, len(kept))
        kept[begin:end] = bytes(end - begin)
    (directory / LOG).write_bytes(bytes(kept))
    ring = bytearray((directory / "decisions").read_bytes())
    ring[24:32] = b"lastboot"
    (directory / "decisions").write_bytes(bytes(ring))
    db = sqlite3.connect(directory / "journal.db", isolation_level=None)
    db.execute("UPDATE position SET boot = x'00'")
    db.close()
