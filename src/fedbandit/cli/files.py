"""Checks of output paths, made before a command starts its work."""

from __future__ import annotations

import os
from pathlib import Path

from fedbandit.errors import InvalidParameter


def check_file(path: Path, option: str) -> Path:
    """`path`, if a file can be written or replaced there; missing directories are created later."""
    if path.is_dir():
        raise InvalidParameter(f"expected {option} as a file, {path} is a directory")
    check_directory(path.parent, option)
    return path


def check_directory(path: Path, option: str) -> Path:
    """`path`, if it is a writable directory or can be created."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists() or folder.is_symlink())
    if not there.is_dir():
        raise InvalidParameter(f"expected {option} in a directory, {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidParameter(f"expected {option} where this user can write, {there} is read-only")
    return path
