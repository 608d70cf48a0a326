"""The decorators of the compiled engine, and where its machine code is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import config

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be split over vector lanes and products fused into them; NaN and infinity keep their meaning.
FLAGS = {"reassoc", "contract", "nsz"}


PACKAGE = Path(__file__).resolve().parents[2]
SOURCES = (PACKAGE / "simulation" / "compiled", PACKAGE / "core")  # kernels take functions and constants from these


def source_digest(folders: tuple[Path, ...] = SOURCES) -> str:
    """A digest of every source that kernels are compiled from.

    numba compares the modification time of the file that a kernel is written in, and sees no change in what that
    file imports. With the digest in the name of the folder, changed sources find no machine code of the old ones.
    """
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextmanager
def kept_by_digest() -> Iterator[None]:
    """Within this block numba keeps machine code in a folder of its own for these sources."""
    before = getattr(config, "CACHE_DIR", "")
    here = Path(__file__).resolve().parent / "__pycache__"
    base = Path(before) if before else (here if _writable(here) else _user_cache())
    vars(config)["CACHE_DIR"] = str(base / f"fedbandit-{source_digest()}")
    try:
        yield
    finally:
        vars(config)["CACHE_DIR"] = before


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedbandit" / "numba"


def kernel(function: Function) -> Function:
    """A loop that Python calls, as machine code: compiled at its first call and kept on disk."""
    try:
        with kept_by_digest():
            return cast(Function, numba.njit(cache=True, fastmath=FLAGS, error_model="numpy")(function))
    except (RuntimeError, OSError):  # no folder to keep it in, as in a read-only container: compiled by each process
        return inner(function)


def inner(function: Function) -> Function:
    """A part of a loop: compiled with it, kept with it."""
    return cast(Function, numba.njit(fastmath=FLAGS, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """A part that takes whole fleets: put into the loop as source, since its many arguments compile slowly."""
    return cast(Function, numba.njit(inline="always", fastmath=FLAGS, error_model="numpy")(function))


def exact_inner(function: Function) -> Function:
    """The same, rounding at every step as NumPy does: sums of statistics agree with the reference to the last bit."""
    return cast(Function, numba.njit(error_model="numpy")(function))
