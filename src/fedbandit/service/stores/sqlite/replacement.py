"""Replace the file of a store such that a kill at any moment leaves the old store or the new one.

1. The new file is complete and on disk beside the store, as a draft.
2. The marker is written: the replacement is decided, and the next process that opens the directory completes it.
3. The old file and its log are moved into a directory of their own, and the draft is renamed.
4. The marker is removed.

A draft without a marker is left by a restore that was interrupted before step 2; the next start removes it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from fedbandit.durable_files import publish, sync
from fedbandit.errors import StoreUnavailable

FILE_NAME = "fedbandit.sqlite3"
DRAFT = f"{FILE_NAME}.part"
MARKER = "restore.pending"
MARKER_DRAFT = f"{MARKER}.part"
FILES = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm")  # a log beside another file would be applied to it
ASIDE = re.compile(r"before-restore-\d+")


def replace_store(directory: Path, copy: Path) -> Path | None:
    """Replace the store by a copy of `copy`; the path of the old one, if any. The caller holds the lock."""
    complete_replacement(directory)
    draft = directory / DRAFT
    try:
        draft.touch(mode=0o600)
        shutil.copyfile(copy, draft)
        sync(draft)
        _write_marker(directory, _free_name(directory))
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return complete_replacement(directory)


def complete_replacement(directory: Path) -> Path | None:
    """Complete a replacement that was decided, or remove the files of one that was not. The caller holds the lock."""
    draft, marker = directory / DRAFT, directory / MARKER
    if not marker.exists():
        for leftover in (draft, directory / MARKER_DRAFT):
            leftover.unlink(missing_ok=True)
        return None
    aside = directory / _read_marker(marker)
    if draft.exists():  # until it is renamed, the current file is the old store
        old = [directory / name for name in FILES if (directory / name).exists()]
        if old:
            aside.mkdir(mode=0o700, exist_ok=True)
        for path in old:
            path.rename(aside / path.name)
        draft.rename(directory / FILE_NAME)
        sync(directory)
    marker.unlink()
    sync(directory)
    return aside if aside.exists() else None


def is_interrupted(directory: Path) -> bool:
    """Whether a replacement was decided and not completed."""
    return (directory / MARKER).exists()


def _free_name(directory: Path) -> str:
    n = 1
    while (directory / f"before-restore-{n}").exists():
        n += 1
    return f"before-restore-{n}"


def _write_marker(directory: Path, aside: str) -> None:
    draft = directory / MARKER_DRAFT
    draft.write_text(aside, encoding="ascii")
    publish(draft, directory / MARKER)


def _read_marker(marker: Path) -> str:
    aside = marker.read_text(encoding="ascii", errors="replace")
    if not ASIDE.fullmatch(aside):
        raise StoreUnavailable(f"{marker} is damaged: expected the name of a directory before-restore-N")
    return aside
