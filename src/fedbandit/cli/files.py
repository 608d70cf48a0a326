"""Whether a command can write where it is told to: checked before its work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from fedbandit.errors import InvalidParameter


def check_file(path: Path, option: str) -> Path:
    """`path`, where a file can be written or replaced; folders that are missing will be made."""
    if path.is_dir():
        raise InvalidParameter(f"expected {option} as a file, {path} is a directory")
    check_directory(path.parent, option)
    return path


def check_directory(path: Path, option: str) -> Path:
    """`path`, where a directory is or can be made, and be written to."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists() or folder.is_symlink())
    if not there.is_dir():
        raise InvalidParameter(f"expected {option} in a directory, {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidParameter(f"expected {option} where this user can write, {there} is read-only")
    return path
