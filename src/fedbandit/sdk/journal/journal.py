"""The journal of an agent: a snapshot in SQLite, every observation since in a log, pending decisions in a ring.

    state_dir/
      lock          held while a process uses the directory
      journal.db    SQLite in WAL mode: `state` (one snapshot), `position` (how far it goes in the log), `pending`
                    (older decisions), `kept` (answered uploads, in case the server comes back from an old backup)
      observations  the log of `observation_log.py`
      decisions     the ring of `pending_ring.py`

A write without fsync is safe from a killed process, because the kernel has it; `strict` waits for the disk each time.
Before an upload travels the journal is brought to disk in any case: after a power cut an agent may have forgotten what
it never sent, but not what it sent.

A snapshot belongs to a `JournalPosition`: the agent fixes it while nothing is observed, and writes the snapshot later,
while observations go on. The log beyond the position is not in the snapshot and is replayed on top of it. Two locks
separate what waits for SQLite (`_database`) from what does not (`_mutex`); a call that needs both takes `_database`
first.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.core.group_sums import CONTROL, TREATMENT
from fedbandit.durable_files import sync_if_possible, unlock
from fedbandit.errors import FormatError, InvalidParameter, JournalFailed
from fedbandit.sdk.journal.layout import (
    Position,
    connect_database,
    lock_directory,
    open_database,
    read_position,
    require_no_past,
    write_position,
)
from fedbandit.sdk.journal.observation_log import LOG_ID_BYTES, ObservationLog
from fedbandit.sdk.journal.pending_ring import (
    BOOT_GAP,
    FIELDS,
    PendingDecision,
    PendingRing,
    boot_id,
    decode_pending,
    encode_pending,
    replace_ring,
    ring_width,
)

MAX_RECORDS = 4096  # replayed in a fraction of a second
MAX_WAL_BYTES = 4 << 20
MAX_LOG_BYTES = 4 << 20  # that the snapshot has as well
KEEP_BYTES = 4 << 20  # of answered uploads
HEAD = struct.Struct("<cqd")  # kind, decision number or −1, reward; the row follows
KINDS = {"": b"o", CONTROL: b"c", TREATMENT: b"t"}  # an observation without a group, or of one
GROUPS = {kind: group for group, kind in KINDS.items()}
GIVEN_UP = struct.Struct("<cq")  # b"g", decision number
REPLACED = struct.Struct("<cqdd")  # b"r", decision number, old and new reward; the row follows
DURABILITY = {"fast": "NORMAL", "strict": "FULL"}  # SQLite's `synchronous`


@dataclass(frozen=True, slots=True)
class SavedState:
    """The last snapshot."""

    model: str
    agent_id: str
    incarnation: str
    description: bytes
    snapshot: bytes


@dataclass(frozen=True, slots=True)
class Observation:
    """A logged observation; `number` is None when no decision was behind it."""

    number: int | None
    x: Vector
    reward: float
    group: str = ""  # of the decision, where the model has a control group


@dataclass(frozen=True, slots=True)
class Batch:
    """Logged statistics of many observations, as canonical bytes."""

    packed: bytes


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A logged decision that was given up for a token."""

    number: int


@dataclass(frozen=True, slots=True)
class Corrected:
    """A logged correction."""

    number: int
    x: Vector
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class KeptUpload:
    """An upload that the server has answered, as it travelled."""

    sequence: int
    growth: float
    packed: bytes
    drift: Mapping[str, Any] = field(default_factory=dict)  # epoch, alarm, dropped and clock, where there are any


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Where a snapshot belongs: it has exactly what was logged and settled before."""

    order: int  # among the moments of this process
    position: int | None  # in the log; None: the log is made ready with this snapshot
    n_logged: int
    done: frozenset[int]  # decisions in the table whose rewards are logged


class Journal:
    """One state directory, held by one process. Everything here may be called from any thread."""

    def __init__(self, directory: Path, *, durability: str = "fast", keep_bytes: int = KEEP_BYTES) -> None:
        if durability not in DURABILITY:
            raise InvalidParameter(f"expected durability 'fast' or 'strict', got {durability!r}")
        self.directory = directory
        self.durability = durability
        self._keep_bytes = keep_bytes
        self._n_logged = 0  # records, in the log when it was opened or appended since
        self._closed = False
        self._database = threading.Lock()  # held while SQLite is used
        self._mutex = threading.Lock()  # held while a record is added, or the log or the ring is changed as a whole
        self._n_moments = 0
        self._moved: set[int] = set()  # pending decisions in the table rather than in the ring
        self._done: set[int] = set()  # of those, settled since the last snapshot
        self._ring: PendingRing | None = None
        self._wider: tuple[list[PendingDecision], int, str] | None = None  # rows for the next snapshot; `widen_rows`
        self._log: ObservationLog | None = None  # from the first snapshot of this process on
        self._found_log: ObservationLog | None = None  # until then
        self._logged: Iterable[bytes] = ()  # since the snapshot, until they are replayed
        self._saved_at = 0  # position in the log of the last snapshot
        self._n_saved = 0  # records before it
        self._order_saved = 0  # of its moment
        self._boot = boot_id()
        self._lost_power = False  # since the last snapshot
        self._lock_file = lock_directory(directory)
        with ExitStack() as undo:
            undo.callback(unlock, self._lock_file)
            self._db = open_database(directory / "journal.db", DURABILITY[durability])
            undo.callback(self._db.close)
            self._wal = os.open(directory / "journal.db-wal", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self._wal)
            with self._reading():
                self.saved = self._read_state()
            undo.pop_all()

    # -- opening -----------------------------------------------------------------------------------------------

    def _read_state(self) -> SavedState | None:
        row = self._db.execute("SELECT model, agent, incarnation, description, snapshot FROM state").fetchone()
        position = read_position(self._db)
        if row is not None and position is not None:
            self._open_log(position)
        elif row is not None:
            raise FormatError(
                f"the state is damaged: the journal in {self.directory} has a snapshot without its position in the log"
            )
        else:
            require_no_past(self.directory, "journal.db-wal, or what it held, is missing")
        return None if row is None else SavedState(*row)

    def _open_log(self, position: Position) -> None:
        self._lost_power = position.boot != self._boot
        try:
            self._found_log, self._logged = ObservationLog.open(
                self.directory / "observations",
                log_id=position.log_id,
                since=position.at,
                lost_power=self._lost_power,
                strict=self.durability == "strict",
            )
        except OSError as error:
            raise JournalFailed(f"the observations in {self.directory} cannot be read: {error}") from None

    def open_decisions(
        self,
        dim: int,
        incarnation: str,
        *,
        mark: int = 0,
        known: frozenset[int] = frozenset(),
        earlier_dims: tuple[int, ...] = (),
    ) -> tuple[list[PendingDecision], int]:
        """Decisions that may be pending, oldest first, and the next number to use; the log may settle some of them.

        After a power cut the ring can be older than the snapshot: of the numbers below `mark`, only those `known` to
        the snapshot are pending. A ring of an earlier width was about to be replaced: the snapshot has what it held.
        """
        path = self.directory / "decisions"
        if self.saved is not None and ring_width(path) in earlier_dims:
            replace_ring(path, dim, incarnation)
        ring = PendingRing(path, dim=dim, incarnation=incarnation, create=self.saved is None)
        self._ring = ring
        ring.lost_power |= self._lost_power  # the ring forgets it at once, and a kill may come before the next snapshot
        with self._reading():
            found = {pending.number: pending for pending in self._read_moved(dim)}
        self._moved = set(found)
        for pending in ring.pending():
            # A kill may have come while the ring was emptied into the table: the table has it, the ring must not.
            is_old = ring.lost_power and pending.number < mark and pending.number not in known
            if is_old or pending.number in found:
                ring.settle(pending.number)
            else:
                found[pending.number] = pending
        # After a power cut the ring may know nothing of what the snapshot knows was given out.
        following = max(ring.next_number(), max(found, default=-1) + 1, mark)
        return [found[number] for number in sorted(found)], following + (BOOT_GAP if ring.lost_power else 0)

    def _read_moved(self, dim: int) -> Iterator[PendingDecision]:
        for number, record in self._db.execute("SELECT number, record FROM pending"):
            if len(record) != FIELDS.size + 8 * dim:
                raise FormatError(f"the state is damaged: decision {number} in {self.directory} has another length")
            yield decode_pending(record)

    def records(self) -> Iterator[Observation | Batch | GivenUp | Corrected]:
        """What was observed since the snapshot, in order."""
        logged, self._logged = self._logged, ()
        for record in logged:
            self._n_logged += 1
            if record[:1] == b"s":
                yield Batch(record[1:])
                continue
            if record[:1] == b"g" and len(record) == GIVEN_UP.size:
                yield GivenUp(GIVEN_UP.unpack(record)[1])
                continue
            if record[:1] == b"r" and len(record) > REPLACED.size and (len(record) - REPLACED.size) % 8 == 0:
                _, number, old, new = REPLACED.unpack_from(record)
                yield Corrected(number, _row(record, REPLACED.size), old, new)
                continue
            if record[:1] not in GROUPS or len(record) < HEAD.size or (len(record) - HEAD.size) % 8:
                raise FormatError(f"the state is damaged: record {self._n_logged} in {self.directory} is of no kind")
            kind, number, reward = HEAD.unpack_from(record)
            yield Observation(None if number < 0 else number, _row(record, HEAD.size), reward, GROUPS[kind])

    # -- writing -----------------------------------------------------------------------------------------------

    def note(self, pending: PendingDecision) -> None:
        """Keep a new decision; calls come one at a time."""
        ring = self._ring or self._require_ring()
        if not ring.put(pending):
            ring.skip(pending.number)  # first: on a full disk the decision is not stored, and after a kill forgotten
            self._move_out(ring)
            ring.put(pending)

    def marks(self) -> bytes:
        """Which decisions are pending in the ring, for `pending_numbers`."""
        return self._require_ring().marks()

    def book(self, number: int | None, x: Vector, reward: float, group: str = "") -> None:
        """Log one observation; the decision behind it is settled."""
        record = HEAD.pack(KINDS[group], -1 if number is None else number, reward) + x.tobytes()
        with self._mutex:
            self._append(record)
            if number is not None:
                self.settle(number)

    def settle(self, number: int) -> None:
        """The log has the reward of this decision, and the ring and the table follow, which may both have it."""
        (self._ring or self._require_ring()).settle(number)
        if number in self._moved:
            self._done.add(number)
            self._moved.discard(number)

    def book_batch(self, packed: bytes) -> None:
        """Log the statistics of many observations."""
        with self._mutex:
            self._append(b"s" + packed)

    def give_up(self, numbers: Iterable[int]) -> None:
        """Drop these decisions for good: on disk when this returns, so that not even a power cut brings them back."""
        with self._mutex:
            for number in numbers:
                self._append(GIVEN_UP.pack(b"g", number))
                self.settle(number)
        self.sync_log()

    def correct(self, number: int, x: Vector, old: float, new: float) -> None:
        """Log another reward for an observation."""
        with self._mutex:
            self._append(REPLACED.pack(b"r", number, old, new) + x.tobytes())

    def sync_log(self) -> None:
        """Wait until everything observed so far is on disk."""
        try:
            with self._mutex:
                if self._log is not None and not self._closed:
                    self._log.sync()
        except OSError as error:
            raise JournalFailed(f"the journal in {self.directory} cannot be brought to disk: {error}") from None

    def take_back(self) -> None:
        """Leave no record in the log whose writing an exception ended: nobody counts it, so no restart may find it."""
        with self._mutex:
            if self._log is not None:
                self._log.take_back()

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop these decisions without a reward."""
        ring, given_up = self._require_ring(), list(numbers)
        with self._mutex:
            if self._moved.isdisjoint(given_up):
                for number in given_up:
                    ring.settle(number)
                return
        with self._database, self._mutex:
            moved = [number for number in given_up if number in self._moved]
            with self._writing():
                self._db.executemany("DELETE FROM pending WHERE number = ?", ((number,) for number in moved))
            self._moved.difference_update(moved)
            for number in given_up:
                ring.settle(number)

    def moment(self) -> JournalPosition:
        """This moment, for a snapshot of it; the caller sees to it that nothing is observed meanwhile."""
        self._n_moments += 1
        position = None if self._log is None else self._log.position
        return JournalPosition(self._n_moments, position, self._n_logged, frozenset(self._done))

    def save(
        self,
        saved: SavedState,
        moment: JournalPosition,
        *,
        answered: Iterable[KeptUpload] = (),
        drop_kept: bool = False,
    ) -> None:
        """Replace the snapshot by one of this moment; keep the uploads that were answered since the last.

        Nothing is done when the journal has a snapshot of a later moment, which holds all of this one.
        """
        with self._database:
            if moment.order <= self._order_saved:
                return
            if self._closed:
                raise JournalFailed(f"the journal in {self.directory} is closed")
            is_first = self._log is None
            with self._writing():
                log = self._ready_log()
                reached = log.position if moment.position is None else moment.position
                row = (saved.model, saved.agent_id, saved.incarnation, saved.description, saved.snapshot)
                self._db.execute("REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?)", row)
                write_position(self._db, Position(log.log_id, reached, self._boot))
                if drop_kept:
                    self._db.execute("DELETE FROM kept")
                for upload in answered:
                    self._keep(upload)
                self._db.executemany("DELETE FROM pending WHERE number = ?", ((number,) for number in moment.done))
                if self._wider is not None:
                    self._replace_pending(self._wider[0])
            # The order first: after it no earlier moment is written, and only then may the log be cut here.
            self._order_saved = moment.order
            self._saved_at, self._n_saved = reached, moment.n_logged
            self._done.difference_update(moment.done)
            if is_first:  # whatever is written beside it from here on can tell that it was there
                self.make_durable()
                sync_if_possible(self.directory)
            if self._wider is not None:
                self._use_wider_ring(*self._wider)
        self.saved = None  # only wanted at the start, and it may be large

    def kept_after(self, sequence: int) -> list[KeptUpload]:
        """Answered uploads beyond this one, in order; the oldest may be gone."""
        query = "SELECT sequence, growth, packed, drift FROM kept WHERE sequence > ? ORDER BY sequence"
        with self._database, self._reading():
            found = self._db.execute(query, (sequence,)).fetchall()
        return [KeptUpload(kept, growth, packed, json.loads(drift)) for kept, growth, packed, drift in found]

    def widen_rows(self, pending: Iterable[PendingDecision], dim: int, incarnation: str) -> None:
        """With the next snapshot these are the pending decisions, in the table, and the ring is for rows of `dim`."""
        self._wider = (list(pending), dim, incarnation)

    def _replace_pending(self, pending: Iterable[PendingDecision]) -> None:
        self._db.execute("DELETE FROM pending")
        self._db.executemany("INSERT INTO pending VALUES (?, ?)", ((w.number, encode_pending(w)) for w in pending))

    def _use_wider_ring(self, pending: list[PendingDecision], dim: int, incarnation: str) -> None:
        """After the snapshot that has the rows; until then `open_decisions` finds the old ring beside it."""
        self.make_durable()
        path, lost_power = self.directory / "decisions", self._require_ring().lost_power
        with self._mutex:
            self._require_ring().close()
            replace_ring(path, dim, incarnation)
            self._ring = PendingRing(path, dim=dim, incarnation=incarnation, create=False)
            self._ring.lost_power = lost_power
            self._moved = {decision.number for decision in pending}
            self._done.clear()
            self._wider = None

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
                with self._database:
                    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise JournalFailed(f"the journal in {self.directory} cannot be tidied: {error}") from None

    @property
    def position(self) -> int:
        """Grows with each record of the log, and only by them."""
        return 0 if self._log is None else self._log.position

    @property
    def n_records(self) -> int:
        """Records of the log that the snapshot does not have."""
        return self._n_logged - self._n_saved

    @property
    def is_long(self) -> bool:
        """Whether a snapshot would save work at the next start."""
        return self.n_records >= MAX_RECORDS

    def close(self) -> None:
        """Close all files and unlock the directory."""
        with self._database, self._mutex:
            if self._closed:
                return
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
        self._n_logged += 1

    def _ready_log(self) -> ObservationLog:
        """The log, which begins with the first snapshot, or goes on after its last whole record."""
        if self._log is None:
            if self._found_log is not None:
                self._found_log.make_ready()
                self._log, self._found_log = self._found_log, None
            else:
                path, log_id = self.directory / "observations", os.urandom(LOG_ID_BYTES)
                self._log = ObservationLog.create(path, log_id=log_id, strict=self.durability == "strict")
        return self._log

    def _shorten_log(self) -> None:
        reached = self._saved_at
        if self._log is None or self._log.n_bytes_before(reached) <= MAX_LOG_BYTES:
            return
        self.make_durable()  # before the records go, the snapshot that has them must be on disk
        with self._mutex:
            if self._closed or self._log.n_bytes_before(reached) <= 0:  # another thread was faster
                return
            try:
                self._log.begin_at(reached)
            except OSError as error:
                raise JournalFailed(f"the journal in {self.directory} cannot be tidied: {error}") from None

    def _keep(self, upload: KeptUpload) -> None:
        n_kept = self._keep_bytes // len(upload.packed)
        if n_kept:
            row = (upload.sequence, upload.growth, upload.packed, json.dumps(dict(upload.drift)))
            self._db.execute("REPLACE INTO kept VALUES (?, ?, ?, ?)", row)
        self._db.execute("DELETE FROM kept WHERE sequence <= ?", (upload.sequence - n_kept,))

    def _move_out(self, ring: PendingRing) -> None:
        """Make room in the ring: all that is pending there goes to the table."""
        with self._database, self._mutex:
            old = ring.pending()
            self._moved.update(pending.number for pending in old)  # first: to look for one in vain does no harm
            with self._writing():
                self._db.executemany("REPLACE INTO pending VALUES (?, ?)", ((w.number, encode_pending(w)) for w in old))
            for pending in old:
                ring.settle(pending.number)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction."""
        try:
            self._roll_back()  # of a call that an exception ended before it could do so itself
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._roll_back()
            raise JournalFailed(f"the journal in {self.directory} cannot be written: {error}") from None
        except BaseException:  # raised by a signal handler
            self._roll_back()
            raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What SQLite says of a disk that cannot be read, as one of our errors."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise JournalFailed(f"the journal in {self.directory} cannot be read: {error}") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise FormatError(f"the state is damaged: the journal in {self.directory}: {error}") from None

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _require_ring(self) -> PendingRing:
        if self._ring is None:
            raise JournalFailed("the journal was not opened for decisions")
        return self._ring


def _row(record: bytes, offset: int) -> Vector:
    return np.frombuffer(record, dtype="<f8", offset=offset).astype(np.float64)
