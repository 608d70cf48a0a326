"""Data sets that are downloaded once: terms shown first, checksum before use, kept in a cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedbandit.errors import DataUnavailable

CACHE_VARIABLE = "FEDBANDIT_DATA"
PIECE = 1 << 16
TIMEOUT_S = 20.0

Say = Callable[[str], None]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Source:
    """A file to download: its address, its expected checksum, and its terms of use.

    Where the publisher states no checksum and none is known, `sha256` is None: the sum of the first download is then
    kept beside the file, and later ones must agree.
    """

    name: str
    url: str
    terms: str
    sha256: str | None = None
    n_bytes: int | None = None

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


HETREC_TERMS = (
    "HetRec 2011, released by the Information Retrieval Group of the Universidad Autónoma de Madrid: for "
    "non-commercial use only; cite Cantador, Brusilovsky and Kuflik (RecSys 2011) and the original site."
)
MOVIELENS_TERMS = (
    "MovieLens, GroupLens research group, University of Minnesota: for research; no redistribution and no commercial "
    "use without permission, no claim of endorsement; cite Harper and Konstan, The MovieLens Datasets (2015)."
)
HETREC, MOVIELENS = "https://files.grouplens.org/datasets/hetrec2011", "https://files.grouplens.org/datasets/movielens"
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "lastfm",
            f"{HETREC}/hetrec2011-lastfm-2k.zip",
            HETREC_TERMS,
            "6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
        ),
        Source("delicious", f"{HETREC}/hetrec2011-delicious-2k.zip", HETREC_TERMS),
        Source(
            "movielens-100k",
            f"{MOVIELENS}/ml-100k.zip",
            MOVIELENS_TERMS,
            "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            4_924_029,
        ),
        Source(
            "movielens-1m",
            f"{MOVIELENS}/ml-1m.zip",
            MOVIELENS_TERMS,
            "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        ),
        Source(
            "movielens-20m",
            f"{MOVIELENS}/ml-20m.zip",
            MOVIELENS_TERMS,
            "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
            198_702_078,
        ),
    )
}


def cache_directory() -> Path:
    """$FEDBANDIT_DATA, or fedbandit/data in the user's cache."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedbandit" / "data"


def fetch(source: Source, folder: str | Path | None = None, *, say: Say | None = None) -> Path:
    """The file in the cache directory, downloaded if it is not there yet; it is used only if its checksum is right."""
    place = cache_directory() if folder is None else Path(folder)
    path = place / source.file_name
    if path.is_file():
        _check(path, source, _sum_of(path))
        return path
    tell = say or _to_stderr
    tell(f"{source.name}: terms of use. {source.terms}")
    tell(f"{source.name}: downloading {source.url} to {place}")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataUnavailable(f"cannot write to {place}: {error}; name another place by {CACHE_VARIABLE}") from None
    partial = path.with_name(path.name + f".{os.getpid()}.part")
    try:
        _check(path, source, _download(source, partial))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _download(source: Source, target: Path) -> str:
    """Stream the file to `target`; returns its SHA-256."""
    import urllib3

    digest = hashlib.sha256()
    timeout, retries = urllib3.Timeout(TIMEOUT_S), urllib3.Retry(2, backoff_factor=0.2)
    try:
        with urllib3.PoolManager(timeout=timeout, retries=retries) as pool:
            answer = pool.request("GET", source.url, preload_content=False)
            if answer.status != 200:
                raise DataUnavailable(_no_data(source, target.parent, f"the server answered {answer.status}"))
            length = answer.headers.get("Content-Length", "")
            total = source.n_bytes or (int(length) if length.isdecimal() else None)
            with target.open("wb") as file, progress_bar(source.name, total) as advance:
                for piece in answer.stream(PIECE):
                    file.write(piece)
                    digest.update(piece)
                    advance(len(piece))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        cause = getattr(error, "reason", None) or error  # the cause of the last retry's failure
        raise DataUnavailable(_no_data(source, target.parent, type(cause).__name__)) from None
    return digest.hexdigest()


def _no_data(source: Source, place: Path, reason: str) -> str:
    return (
        f"the {source.name} data cannot be downloaded from {source.url} ({reason}). Without a network, fetch the file "
        f"elsewhere and put it into {place}, or use a world that needs none: digits, breast_cancer, wine, "
        "flights"
    )


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, source: Source, found: str) -> None:
    """The published checksum, or that of the first download."""
    kept = path.with_name(path.name + ".sha256")
    expected = source.sha256
    if expected is None:
        if not kept.is_file():
            kept.write_text(found + "\n", encoding="ascii")
        expected = kept.read_text(encoding="ascii").strip()
    if found != expected:
        raise DataUnavailable(
            f"{path.name} has the SHA-256 {found}, expected {expected}: it is damaged or another version; remove "
            f"{path} to download it again"
        )


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


@contextlib.contextmanager
def progress_bar(name: str, total: int | None) -> Iterator[Advance]:
    """A progress bar where rich is installed and the output is a terminal; nothing otherwise."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda n: None
        return
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda n: bar.advance(task, n)
