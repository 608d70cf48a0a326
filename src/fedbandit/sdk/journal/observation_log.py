"""The log of observations: an append-only file, one write for each, and one number that says how far a snapshot goes.

    header (64 bytes): magic and version, whose log it is, position of the first record, check sum
    record: check sum (4), length (4), position (8), body, padding to a multiple of 8

A position counts the bytes that were ever logged. The database keeps the position that its snapshot reaches, in the
same transaction, and whatever the file has beyond it is replayed. So a snapshot does not touch the file, a snapshot
that a power cut took back only means more to replay, and nothing can count twice. From time to time the file is made
anew without what the snapshot on disk has.

A kill can tear the last record, which is then dropped. Where writes are not waited for, a power cut can leave a hole
before whole records, and the log ends at the hole. A hole without a power cut, or before a record that was written
after a sync, is damage.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedbandit.durable_files import sync_if_possible
from fedbandit.errors import FormatError, UnsupportedFormat

MAGIC = b"fblogs\x00\x01"
HEADER = struct.Struct("<8s16sQ28xI")
CHECK = struct.Struct("<I")
FRAME = struct.Struct("<IIQ")  # check sum, length, position
SYNCED = 1 << 31  # in the length: all records before this one were on disk when it was written
WORD = (1 << 32) - 1
PADDING = tuple(bytes(n) for n in range(8))
LOG_ID_BYTES = 16


class LogContents(NamedTuple):
    """What a log holds beyond a position."""

    bodies: list[bytes]
    base: int  # position of the first record in the file
    end: int  # position after the last whole record


class ObservationLog:
    """One log, open for appending; the caller sees to it that calls come one at a time."""

    def __init__(self, path: Path, handle: int, *, log_id: bytes, base: int, position: int, strict: bool) -> None:
        self.log_id = log_id
        self.position = position  # of the next record
        self._path = path
        self._handle = handle
        self._base = base
        self._strict = strict
        self._flags = SYNCED if strict else 0
        self._seed = zlib.crc32(log_id)
        self._shift = HEADER.size - base
        self._is_renewed = False  # the file with this name may be another one than the handle's
        self._is_writing = False  # the file may have a record, or a part of one, beyond `position`

    @classmethod
    def create(cls, path: Path, *, log_id: bytes, strict: bool) -> ObservationLog:
        """An empty log, in the place of whatever was there."""
        return cls(path, _create(path, log_id, 0, b""), log_id=log_id, base=0, position=0, strict=strict)

    @classmethod
    def open(
        cls, path: Path, *, log_id: bytes, since: int, lost_power: bool, strict: bool
    ) -> tuple[ObservationLog, list[bytes]]:
        """The log, and what it holds beyond the position `since`; nothing is changed before `make_ready`."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FormatError(f"the state is damaged: {path} is missing, and with it observations") from None
        try:
            data = os.pread(handle, os.fstat(handle).st_size, 0)
            found = read_log(data, log_id=log_id, since=since, lost_power=lost_power, path=path)
        except BaseException:
            os.close(handle)
            raise
        return cls(path, handle, log_id=log_id, base=found.base, position=found.end, strict=strict), found.bodies

    def make_ready(self) -> None:
        """Before the first record is added: nothing lies beyond the end, and all before it is on disk."""
        end = self.position + self._shift
        if os.fstat(self._handle).st_size < end:
            self.begin_at(self.position)
            return
        os.ftruncate(self._handle, end)
        os.fsync(self._handle)

    def append(self, body: bytes) -> None:
        """Add a record; with `strict` it is on disk afterwards. What could not be written whole is taken back."""
        if self._is_renewed:
            self._find_file()
        position, n_body = self.position, len(body)
        length = n_body | self._flags
        check = zlib.crc32(body, (self._seed ^ length ^ position) & WORD)
        record = FRAME.pack(check, length, position) + body + PADDING[-n_body % 8]
        self._is_writing = True
        try:
            if os.pwrite(self._handle, record, position + self._shift) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._strict:
                _sync(self._handle)
        except OSError:
            self.take_back()
            raise
        self.position = position + len(record)
        self._is_writing = False

    def sync(self) -> None:
        """Wait until all records are on disk."""
        _sync(self._handle)

    def take_back(self) -> None:
        """Cut off a record that was being written when an exception came: the next process must not find it."""
        if self._is_writing:
            with suppress(OSError):  # the next record is written over it in any case
                os.ftruncate(self._handle, self.position + self._shift)
            self._is_writing = False

    def n_bytes_before(self, position: int) -> int:
        """Bytes of the file that are not wanted once a snapshot up to this position is on disk."""
        return position - self._base

    def begin_at(self, position: int) -> None:
        """Make the file anew without what comes before this position; a snapshot on disk must have that."""
        n_bytes = self.position - position
        tail = os.pread(self._handle, n_bytes, position + self._shift)
        if len(tail) != n_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._is_renewed = True
        os.close(_create(self._path, self.log_id, position, tail))
        self._find_file()

    def _find_file(self) -> None:
        """Go on in the file that has the name; also after an exception on the way there."""
        handle, old = os.open(self._path, os.O_RDWR | os.O_CLOEXEC), self._handle
        self._base = _read_header(os.pread(handle, HEADER.size, 0), self.log_id, self._path)
        self._shift = HEADER.size - self._base
        self._handle = handle
        self._is_renewed = False
        os.close(old)

    def close(self) -> None:
        """Close the file; appending afterwards is an `OSError`."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def read_log(data: bytes, *, log_id: bytes, since: int, lost_power: bool, path: Path) -> LogContents:
    """The records in the bytes of a log beyond the position `since`, up to the first that is not whole."""
    base = _read_header(data, log_id, path)
    at = HEADER.size + since - base
    if since < base or (at > len(data) and not lost_power):
        raise FormatError(f"the state is damaged: {path} does not go on where the snapshot ends; nothing was changed")
    bodies, seed = [], zlib.crc32(log_id)
    while (record := _record_at(data, at, since, seed)) is not None:
        body, n_bytes = record
        bodies.append(body)
        at, since = at + n_bytes, since + n_bytes
    if _goes_on(data, at, since, seed, lost_power=lost_power):
        raise FormatError(f"the state is damaged: {path} has a hole at byte {at}; nothing was changed")
    return LogContents(bodies, base, since)


def _read_header(data: bytes, log_id: bytes, path: Path) -> int:
    if len(data) < HEADER.size or data[:6] != MAGIC[:6]:
        raise FormatError(f"the state is damaged: {path} does not hold observations; nothing was changed")
    magic, whose, base, check = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise UnsupportedFormat(f"{path} has another format than this fedbandit reads; nothing was changed")
    if check != zlib.crc32(data[: HEADER.size - CHECK.size]) or whose != log_id:
        raise FormatError(f"the state is damaged: {path} does not belong to the journal beside it; nothing was changed")
    return int(base)


def _record_at(data: bytes, at: int, position: int, seed: int) -> tuple[bytes, int] | None:
    """The body of the record at this place, and how many bytes it takes; None if there is no whole one."""
    if len(data) < at + FRAME.size:
        return None
    check, length, found = FRAME.unpack_from(data, at)
    n_body = length & (SYNCED - 1)
    n_bytes = FRAME.size + n_body + -n_body % 8
    if found != position or len(data) < at + n_bytes:
        return None
    body = data[at + FRAME.size : at + FRAME.size + n_body]
    return (body, n_bytes) if check == zlib.crc32(body, (seed ^ length ^ position) & WORD) else None


def _goes_on(data: bytes, at: int, position: int, seed: int, *, lost_power: bool) -> bool:
    """Whether whole records follow after something that is none, which nothing but damage explains."""
    n_words = (len(data) - at) // 8
    if n_words < 2:
        return False
    words = np.frombuffer(data, dtype="<u8", offset=at, count=n_words)
    # A record has its own position in its second word.
    places = np.flatnonzero(words[1:] == position + 8 * np.arange(n_words - 1, dtype=np.uint64))
    for n in map(int, places):
        is_synced = bool(FRAME.unpack_from(data, at + 8 * n)[1] & SYNCED)
        if (is_synced or not lost_power) and _record_at(data, at + 8 * n, position + 8 * n, seed) is not None:
            return True
    return False


def _create(path: Path, log_id: bytes, base: int, tail: bytes) -> int:
    """A handle of a new log, made beside its place and on disk before it takes it; as readable as the database."""
    draft = path.with_suffix(".new")
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, path.with_name("journal.db").stat().st_mode & 0o777)
        header = HEADER.pack(MAGIC, log_id, base, 0)[: -CHECK.size]
        content = header + CHECK.pack(zlib.crc32(header)) + tail
        if os.pwrite(handle, content, 0) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
        draft.replace(path)
    except BaseException:
        os.close(handle)
        draft.unlink(missing_ok=True)
        raise
    sync_if_possible(path.parent)
    return handle


def _sync(handle: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(handle)
    else:  # macOS
        os.fsync(handle)
