"""Pending decisions in a memory-mapped ring: about a microsecond each, and a kill loses none.

What a process has stored in a shared mapping belongs to the kernel: it is there for the next process however this
one ends. A slot is written body first and mark last, so a mark that can be read has a whole body behind it. Only a
power cut can separate the two, and then the check sum tells.

    header (72 bytes) | marks (8 each) | bodies: number, index, model version, time, …, row (8 each), check sum (8)

A mark is 0 (never used), number + 1 (pending) or −(number + 1) (settled). The header ends with number + 1 of
the last decision for which there was no slot: it may never be stored, and its number must not be used again.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedbandit.algorithms.policies import CONTROL_POLICY, POLICIES
from fedbandit.core.arrays import Vector, frozen
from fedbandit.durable_files import sync_if_possible
from fedbandit.errors import FormatError, JournalFailed, UnsupportedFormat

MAGIC = b"fbring\x00\x03"
HEADER = struct.Struct("<8sqq8s32s")  # magic and version, dim, slots, boot, digest of the incarnation; then a number
# Number, index (−1: none), model version, time, propensity and score (NaN: none), policy.
FIELDS = struct.Struct("<qqqdddq")
PACK, NONE = FIELDS.pack, math.nan
MAKERS = (*POLICIES, CONTROL_POLICY)
CODES = {policy: code for code, policy in enumerate(MAKERS)}
CHECK = struct.Struct("<Q")
HEADER_BYTES = HEADER.size + 8
SLOTS = (64, 1024)
BYTES = 1 << 20
# More decisions than can be made between the kernel's last write-back and a power cut.
BOOT_GAP = 1 << 32


class PendingDecision(NamedTuple):
    """A decision without its reward, as the journal keeps it."""

    number: int
    choice: int | None  # row in its decision set
    model_version: int
    made_at: float  # seconds since 1970
    x: Vector
    propensity: float | None = 1.0
    score: float | None = None
    policy: str = "ucb"


class PendingRing:
    """The last decisions of one agent; a slot is used again once its decision is settled or has moved elsewhere."""

    def __init__(self, path: Path, *, dim: int, incarnation: str, create: bool) -> None:
        try:
            if create:
                _create(path, dim, incarnation)
            self.n_slots, self.lost_power = _check(path, dim, incarnation)
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            raise JournalFailed(f"the decisions in {path} cannot be kept: {error}") from None
        self._path = path
        self._bodies_at = HEADER_BYTES + 8 * self.n_slots
        self._body = struct.Struct(f"<{FIELDS.size}s{8 * dim}sQ")
        self._skipped = memoryview(self._map)[HEADER.size : HEADER_BYTES].cast("q")
        self._marks = memoryview(self._map)[HEADER_BYTES : self._bodies_at].cast("q")
        _stamp_boot(self._map)

    def put(self, pending: PendingDecision) -> bool:
        """Store a decision; False if its slot holds another pending one."""
        # As in `_fields`, which as a call would be a tenth of the time.
        number, choice, model_version, made_at, x, propensity, score, policy = pending
        slot = number % self.n_slots
        if self._marks[slot] > 0:
            return False
        fields = PACK(
            number,
            -1 if choice is None else choice,
            model_version,
            made_at,
            NONE if propensity is None else propensity,
            NONE if score is None else score,
            CODES[policy],
        )
        row = x.tobytes()
        check = zlib.crc32(row, zlib.crc32(fields))
        self._body.pack_into(self._map, self._bodies_at + self._body.size * slot, fields, row, check)
        self._marks[slot] = number + 1
        return True

    def skip(self, number: int) -> None:
        """Never use this number again, whether its decision can be stored or not."""
        self._skipped[0] = number + 1

    def settle(self, number: int) -> bool:
        """Mark a decision as settled; False if the ring does not have it."""
        slot = number % self.n_slots
        if self._marks[slot] != number + 1:
            return False
        self._marks[slot] = -(number + 1)
        return True

    def pending(self) -> list[PendingDecision]:
        """All pending decisions, oldest first; those that a power cut has torn are settled instead."""
        found = []
        for slot, mark in enumerate(self._marks):
            pending = self._get(slot) if mark > 0 else None
            if pending is not None:
                found.append(pending)
            elif mark > 0:
                self._marks[slot] = -mark
        return sorted(found, key=lambda pending: pending.number)

    def marks(self) -> bytes:
        """A copy of all marks, made in about a microsecond; `pending_numbers` reads it."""
        return self._marks.tobytes()

    def next_number(self) -> int:
        """One more than the largest number that was ever stored or skipped."""
        return max(self._skipped[0], *(abs(mark) for mark in self._marks))

    def close(self) -> None:
        """Give the mapping back; what it holds stays."""
        self._skipped.release()
        self._marks.release()
        self._map.close()

    def _get(self, slot: int) -> PendingDecision | None:
        where = self._bodies_at + self._body.size * slot
        content = self._map[where : where + self._body.size]
        body, (check,) = content[: -CHECK.size], CHECK.unpack(content[-CHECK.size :])
        pending = decode_pending(body)
        if check == zlib.crc32(body) and pending.number == self._marks[slot] - 1:
            return pending
        if self.lost_power:
            return None
        raise FormatError(f"the state is damaged: {self._path}: slot {slot} does not hold what it should")


def pending_numbers(marks: bytes) -> list[int]:
    """Numbers of the decisions that were pending when the marks were copied."""
    return [mark - 1 for mark in memoryview(marks).cast("q") if mark > 0]


def encode_pending(pending: PendingDecision) -> bytes:
    """A decision as bytes."""
    return _fields(pending) + pending.x.tobytes()


def _fields(pending: PendingDecision) -> bytes:
    number, choice, model_version, made_at, _, propensity, score, policy = pending
    return FIELDS.pack(
        number,
        -1 if choice is None else choice,
        model_version,
        made_at,
        NONE if propensity is None else propensity,
        NONE if score is None else score,
        CODES[policy],
    )


def decode_pending(body: bytes) -> PendingDecision:
    """The decision of bytes made by `encode_pending`."""
    number, choice, model_version, made_at, propensity, score, policy = FIELDS.unpack_from(body)
    row = frozen(np.frombuffer(body, dtype="<f8", offset=FIELDS.size).astype(np.float64))
    return PendingDecision(
        number,
        None if choice < 0 else choice,
        model_version,
        made_at,
        row,
        None if math.isnan(propensity) else propensity,
        None if math.isnan(score) else score,
        MAKERS[policy] if 0 <= policy < len(MAKERS) else "",
    )


def _body_bytes(dim: int) -> int:
    return FIELDS.size + 8 * dim + CHECK.size


def _n_bytes(dim: int, n_slots: int) -> int:
    return HEADER_BYTES + n_slots * (8 + _body_bytes(dim))


def _create(path: Path, dim: int, incarnation: str) -> None:
    fewest, most = SLOTS
    n_slots = max(fewest, min(most, BYTES // (8 + _body_bytes(dim))))
    header = HEADER.pack(MAGIC, dim, n_slots, boot_id(), _digest_of(incarnation))
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        # Really taken from the disk: a full one must say so here, not by a bus error in `choose`.
        os.posix_fallocate(file.fileno(), 0, _n_bytes(dim, n_slots))
        file.write(header)
        file.flush()
        os.fsync(file.fileno())


def ring_width(path: Path) -> int:
    """Numbers in a row of the ring in this file, as its header says; 0 if there is none."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError:
        return 0
    return int(HEADER.unpack_from(head)[1]) if len(head) == HEADER_BYTES and head[:8] == MAGIC else 0


def replace_ring(path: Path, dim: int, incarnation: str) -> None:
    """An empty ring in the place of the one there is, in one step."""
    draft = path.with_suffix(".new")
    try:
        _create(draft, dim, incarnation)
        draft.replace(path)
    except OSError as error:
        raise JournalFailed(f"the decisions in {path} cannot be kept: {error}") from None
    sync_if_possible(path.parent)


def _check(path: Path, dim: int, incarnation: str) -> tuple[int, bool]:
    """Number of slots, and whether the machine has started anew since the ring was last open."""
    try:
        with path.open("rb") as file:
            head, size = file.read(HEADER_BYTES), path.stat().st_size
    except FileNotFoundError:
        raise FormatError(f"the state is damaged: {path} is missing, and with it which decisions were made") from None
    if len(head) < HEADER_BYTES or head[:6] != MAGIC[:6]:
        raise FormatError(f"the state is damaged: {path} does not hold decisions; nothing was changed")
    magic, found_dim, n_slots, boot, owner = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise UnsupportedFormat(f"{path} has another format than this fedbandit reads; nothing was changed")
    if found_dim != dim or owner != _digest_of(incarnation) or n_slots < 1 or size != _n_bytes(dim, n_slots):
        raise FormatError(f"the state is damaged: {path} does not belong to the journal beside it; nothing was changed")
    return n_slots, boot != boot_id()


def _stamp_boot(mapping: mmap.mmap) -> None:
    magic, dim, n_slots, _, owner = HEADER.unpack_from(mapping)
    HEADER.pack_into(mapping, 0, magic, dim, n_slots, boot_id(), owner)


def boot_id() -> bytes:
    """Eight bytes that change when the machine starts; a mapping survives a process, not a power cut."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        name = b""
    return hashlib.sha256(name).digest()[:8]


def _digest_of(incarnation: str) -> bytes:
    return hashlib.sha256(incarnation.encode()).digest()
