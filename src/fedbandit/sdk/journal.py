"""The journal of an agent: a snapshot in SQLite, every observation since in a log, what waits for rewards in a ring.

    state_dir/
      lock          held while a process uses the directory
      journal.db    SQLite in WAL mode: `state` (one snapshot), `position` (how far it goes in the log), `pending`
                    (older decisions), `kept` (answered uploads, in case the server comes back from an old backup)
      observations  the log of `log_file.py`
      decisions     the ring of `decisions.py`

A write without fsync is safe from a killed process, because the kernel has it; `strict` waits for the disk each time.
Before an upload travels the journal is brought to disk in any case: after a power cut an agent may have forgotten what
it never sent, but not what it sent.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.errors import FormatError, InvalidParameter, JournalFailed
from fedbandit.sdk.decisions import BOOT_GAP, FIELDS, DecisionRing, Waiting, boot_id, decode_waiting, encode_waiting
from fedbandit.sdk.log_file import LIFE_BYTES, LogFile
from fedbandit.sdk.state_files import (
    Position,
    connect_database,
    lock_directory,
    old_records,
    open_database,
    read_position,
    unlock,
    write_position,
)

MAX_RECORDS = 4096  # replayed in a fraction of a second
MAX_WAL_BYTES = 4 << 20
MAX_LOG_BYTES = 4 << 20  # that the snapshot has as well
KEEP_BYTES = 4 << 20  # of answered uploads
HEAD = struct.Struct("<cqd")  # b"o", decision number or −1, reward; the row follows
DURABILITY = {"fast": "NORMAL", "strict": "FULL"}  # SQLite's `synchronous`


@dataclass(frozen=True, slots=True)
class Saved:
    """The last snapshot."""

    model: str
    agent_id: str
    incarnation: str
    terms: bytes
    snapshot: bytes


@dataclass(frozen=True, slots=True)
class Observation:
    """A logged observation; `number` is None when no decision was behind it."""

    number: int | None
    x: Vector
    reward: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Logged statistics of many observations, as canonical bytes."""

    packed: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """An upload that the server has answered, as it travelled."""

    sequence: int
    growth: float
    packed: bytes


class Journal:
    """One state directory, held by one process. Everything here may be called from any thread."""

    def __init__(self, directory: Path, *, durability: str = "fast", keep_bytes: int = KEEP_BYTES) -> None:
        if durability not in DURABILITY:
            raise InvalidParameter(f"expected durability 'fast' or 'strict', got {durability!r}")
        self.directory = directory
        self.durability = durability
        self._keep_bytes = keep_bytes
        self.n_records = 0
        self._closed = False
        self._mutex = threading.Lock()
        self._moved: set[int] = set()  # waiting decisions in `pending` rather than in the ring
        self._done: list[int] = []  # of those, settled since the last snapshot
        self._ring: DecisionRing | None = None
        self._log: LogFile | None = None  # from the first snapshot of this process on
        self._found_log: LogFile | None = None  # until then
        self._logged: Iterable[bytes] = ()  # since the snapshot, until they are lived through again
        self._saved_at = 0  # position in the log
        self._boot = boot_id()
        self._lost_power = False  # since the last snapshot
        self._lock_file = lock_directory(directory)
        with ExitStack() as undo:
            undo.callback(unlock, self._lock_file)
            self._db = open_database(directory / "journal.db", DURABILITY[durability])
            undo.callback(self._db.close)
            self._wal = os.open(directory / "journal.db-wal", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self._wal)
            self.saved = self._read_state()
            undo.pop_all()

    # -- opening -----------------------------------------------------------------------------------------------

    def _read_state(self) -> Saved | None:
        row = self._db.execute("SELECT model, agent, incarnation, terms, snapshot FROM state").fetchone()
        position = read_position(self._db)
        if row is not None and position is not None:
            self._open_log(position)
        elif row is not None:
            self._logged = old_records(self._db, self.directory)
        return None if row is None else Saved(*row)

    def _open_log(self, position: Position) -> None:
        self._lost_power = position.boot != self._boot
        try:
            self._found_log, self._logged = LogFile.open(
                self.directory / "observations",
                life=position.life,
                since=position.at,
                lost_power=self._lost_power,
                strict=self.durability == "strict",
            )
        except OSError as error:
            raise JournalFailed(f"the observations in {self.directory} cannot be read: {error}") from None

    def open_decisions(
        self, dim: int, incarnation: str, *, mark: int = 0, known: frozenset[int] = frozenset()
    ) -> tuple[list[Waiting], int]:
        """Decisions that may be waiting, oldest first, and the next number to give; the log may settle some of them.

        After a power cut the ring can be older than the snapshot: of the numbers below `mark`, only those `known` to
        the snapshot wait.
        """
        ring = DecisionRing(self.directory / "decisions", dim=dim, incarnation=incarnation, create=self.saved is None)
        self._ring = ring
        ring.lost_power |= self._lost_power  # the ring forgets it at once, and a kill may come before the next snapshot
        found = {waiting.number: waiting for waiting in self._read_moved(dim)}
        self._moved = set(found)
        for waiting in ring.waiting():
            if ring.lost_power and waiting.number < mark and waiting.number not in known:
                ring.settle(waiting.number)
            else:
                found[waiting.number] = waiting
        following = max(ring.next_number(), max(found, default=-1) + 1)
        return [found[number] for number in sorted(found)], following + (BOOT_GAP if ring.lost_power else 0)

    def _read_moved(self, dim: int) -> Iterator[Waiting]:
        for number, record in self._db.execute("SELECT number, record FROM pending"):
            if len(record) != FIELDS.size + 8 * dim:
                raise FormatError(f"the state is damaged: decision {number} in {self.directory} has another length")
            yield decode_waiting(record)

    def records(self) -> Iterator[Observation | Batch]:
        """What was observed since the snapshot, in order."""
        logged, self._logged = self._logged, ()
        for record in logged:
            self.n_records += 1
            if record[:1] == b"s":
                yield Batch(record[1:])
                continue
            if record[:1] != b"o" or len(record) < HEAD.size or (len(record) - HEAD.size) % 8:
                raise FormatError(f"the state is damaged: record {self.n_records} in {self.directory} is of no kind")
            _, number, reward = HEAD.unpack_from(record)
            yield Observation(None if number < 0 else number, _row(record, HEAD.size), reward)

    # -- writing -----------------------------------------------------------------------------------------------

    def note(self, waiting: Waiting) -> None:
        """Keep a new decision; calls come one at a time."""
        ring = self._ring or self._require_ring()
        if not ring.put(waiting):
            self._move_out(ring)
            ring.put(waiting)

    def waiting_numbers(self) -> list[int]:
        """Numbers of the decisions that wait in the ring."""
        return self._require_ring().waiting_numbers()

    def book(self, number: int | None, x: Vector, reward: float) -> None:
        """Log one observation; the decision behind it waits no more."""
        record = HEAD.pack(b"o", -1 if number is None else number, reward) + x.tobytes()
        with self._mutex:
            self._append(record)
            if number is not None:
                self.settle(number)

    def settle(self, number: int) -> None:
        """The log has the reward of this decision, and the books of decisions follow."""
        if not (self._ring or self._require_ring()).settle(number) and number in self._moved:
            self._moved.discard(number)
            self._done.append(number)

    def book_batch(self, packed: bytes) -> None:
        """Log the statistics of many observations."""
        with self._mutex:
            self._append(b"s" + packed)

    def forget(self, numbers: Iterable[int]) -> None:
        """These decisions wait no more, and no reward was booked for them."""
        with self._mutex, self._writing():
            for number in numbers:
                if not self._require_ring().settle(number) and number in self._moved:
                    self._db.execute("DELETE FROM pending WHERE number = ?", (number,))
                    self._moved.discard(number)

    def save(self, saved: Saved, *, answered: Iterable[Kept] = (), drop_kept: bool = False) -> None:
        """Replace the snapshot by one that has all of the log; keep the uploads that were answered since the last."""
        with self._mutex:
            with self._writing():
                log = self._ready_log()
                row = (saved.model, saved.agent_id, saved.incarnation, saved.terms, saved.snapshot)
                self._db.execute("REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?)", row)
                write_position(self._db, Position(log.life, log.position, self._boot))
                if drop_kept:
                    self._db.execute("DELETE FROM kept")
                for upload in answered:
                    self._keep(upload)
                self._db.executemany("DELETE FROM pending WHERE number = ?", ((number,) for number in self._done))
            self._saved_at = log.position
        self.n_records = 0
        self._done.clear()
        self.saved = None  # only wanted at the start, and it may be large

    def kept_after(self, sequence: int) -> list[Kept]:
        """Answered uploads beyond this one, in order; the oldest may be gone."""
        query = "SELECT sequence, growth, packed FROM kept WHERE sequence > ? ORDER BY sequence"
        with self._mutex:
            return [Kept(*row) for row in self._db.execute(query, (sequence,))]

    def make_durable(self) -> None:
        """Wait until everything written so far is on disk."""
        try:
            if not self._closed:
                os.fsync(self._wal)
        except OSError as error:
            raise JournalFailed(f"the journal in {self.directory} cannot be brought to disk: {error}") from None

    def tidy(self) -> None:
        """Leave out of the log what the snapshot has, and move SQLite's log into the database, when they are long."""
        if self._closed:
            return
        self._shorten_log()
        if os.fstat(self._wal).st_size <= MAX_WAL_BYTES:
            return
        try:
            with closing(connect_database(self.directory / "journal.db", "NORMAL")) as other:
                other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                with self._mutex:
                    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise JournalFailed(f"the journal in {self.directory} cannot be tidied: {error}") from None

    @property
    def is_long(self) -> bool:
        """Whether a snapshot would save work at the next start."""
        return self.n_records >= MAX_RECORDS

    def close(self) -> None:
        """Let go of the directory."""
        with self._mutex:
            self._closed = True
            if self._ring is not None:
                self._ring.close()
            for log in (self._log, self._found_log):
                if log is not None:
                    log.close()
            self._db.close()
            os.close(self._wal)
            unlock(self._lock_file)

    def let_go_after_fork(self) -> None:
        """In a forked child: the directory stays its parent's, and is free when the parent ends."""
        os.close(self._lock_file)
        if self._log is not None:
            self._log.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _append(self, record: bytes) -> None:
        log = self._log
        if log is None:
            raise JournalFailed("the journal has no snapshot yet")
        try:
            log.append(record)
        except OSError as error:
            raise JournalFailed(f"the journal in {self.directory} cannot be written: {error}") from None
        self.n_records += 1

    def _ready_log(self) -> LogFile:
        """The log, which begins with the first snapshot, or goes on after its last whole record."""
        if self._log is None:
            if self._found_log is not None:
                self._found_log.make_ready()
                self._log, self._found_log = self._found_log, None
            else:
                path, life = self.directory / "observations", os.urandom(LIFE_BYTES)
                self._log = LogFile.create(path, life=life, strict=self.durability == "strict")
        return self._log

    def _shorten_log(self) -> None:
        with self._mutex:
            if self._log is None or self._log.n_bytes_before(self._saved_at) <= MAX_LOG_BYTES:
                return
            self.make_durable()  # before the records go, the snapshot that has them must be on disk
            try:
                self._log.begin_at(self._saved_at)
            except OSError as error:
                raise JournalFailed(f"the journal in {self.directory} cannot be tidied: {error}") from None

    def _keep(self, upload: Kept) -> None:
        n_kept = self._keep_bytes // len(upload.packed)
        if n_kept:
            row = (upload.sequence, upload.growth, upload.packed)
            self._db.execute("REPLACE INTO kept VALUES (?, ?, ?)", row)
        self._db.execute("DELETE FROM kept WHERE sequence <= ?", (upload.sequence - n_kept,))

    def _move_out(self, ring: DecisionRing) -> None:
        """Make room in the ring: all that waits there goes to the table."""
        with self._mutex:
            old = ring.waiting()
            with self._writing():
                self._db.executemany("REPLACE INTO pending VALUES (?, ?)", ((w.number, encode_waiting(w)) for w in old))
            self._moved.update(waiting.number for waiting in old)
            for waiting in old:
                ring.settle(waiting.number)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise JournalFailed(f"the journal in {self.directory} cannot be written: {error}") from None

    def _require_ring(self) -> DecisionRing:
        if self._ring is None:
            raise JournalFailed("the journal was not opened for decisions")
        return self._ring


def _row(record: bytes, offset: int) -> Vector:
    return np.frombuffer(record, dtype="<f8", offset=offset).astype(np.float64)
