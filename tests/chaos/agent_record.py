"""What an agent process observed, in a file that is independent of the journal.

A line is written before `observe` is called and one after it returned; each survives a SIGKILL. An observation that was
tried but never confirmed may be in the journal or not: the next process writes `resumed`, which tells.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbandit.wire.codec import BlockSyncReply, BlockSyncRequest, SyncReply, SyncRequest, expanded_numbers, numbers_of

MODEL = "chaos"
DIM = 4
TAIL_BYTES = 1 << 18


class RecordWriter:
    """Appends whole lines, one system call each."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **fields: Any) -> None:
        os.write(self.handle, json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self.handle)


@dataclass
class AgentRecord:
    """One agent's file, read incrementally. `tries` holds observations that are not confirmed yet."""

    path: Path
    n_done: int = 0
    n_tried: int = 0
    n_resumed: int = 0
    last_decision: str | None = None
    not_kept: set[str] = field(default_factory=set)  # decisions not stored on a full disk, as logged
    violations: list[str] = field(default_factory=list)
    models: list[tuple[int, str]] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    sums: np.ndarray = field(default_factory=lambda: np.zeros(n_packed()))
    slow: list[tuple[str, float, float, float]] = field(default_factory=list)  # call, limit, seconds, when it ended
    booked: set[str] = field(default_factory=set)  # decisions whose reward is among the settled observations
    _tries: dict[int, tuple[list[list[float]], list[float], str | None]] = field(default_factory=dict)
    _settled: int = 0
    _read: int = 0

    @classmethod
    def tail(cls, path: Path) -> AgentRecord:
        """The end of the file, as much as a new process needs."""
        record = cls(path)
        size = path.stat().st_size if path.exists() else 0
        if size > TAIL_BYTES:
            with path.open("rb") as file:
                file.seek(size - TAIL_BYTES)
                record._read = size - TAIL_BYTES + len(file.readline())
        record.update()
        record.violations.clear()  # the first `resumed` in a tail has nothing before it
        return record

    def update(self) -> AgentRecord:
        """Read the new lines; a last one without its end is left for later."""
        if not self.path.exists():
            return self
        with self.path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))
        return self

    def _take(self, line: dict[str, Any]) -> None:
        if "try" in line:
            self._tries[line["try"]] = (line["rows"], line["rewards"], line["decision"])
            self.n_tried = line["try"] + len(line["rows"])
            self.last_decision = line["decision"]
        elif "not_kept" in line:
            self.not_kept.add(line["not_kept"])
        elif "done" in line:
            self.n_done = line["done"]
        elif "resumed" in line:
            self._resume(line["resumed"])
        elif "model" in line:
            self.models.append((line["model"], line["digest"]))
        elif "violation" in line:
            self.violations.append(line["violation"])
        elif "event" in line:
            self.events[line["event"]] = self.events.get(line["event"], 0) + 1
        elif "call" in line:
            self.slow.append((line["call"], line["limit"], line["took"], line["ended"]))

    def _resume(self, rounds: int) -> None:
        """The journal has all that was confirmed, and at most one try more."""
        self.n_resumed += 1
        if not self.n_done <= rounds <= max(self.n_tried, self.n_done):
            self.violations.append(f"resumed at {rounds}, but {self.n_done} were confirmed and {self.n_tried} tried")
        self.n_done = rounds

    def seen(self, rounds: int) -> np.ndarray:
        """Packed sums of the first `rounds` observations, which are confirmed."""
        while self._settled < rounds:
            if self._settled not in self._tries:
                raise AssertionError(f"observation {self._settled} of {self.path.stem} was never tried")
            rows, rewards, decision = self._tries.pop(self._settled)
            if decision is not None and decision in self.booked:
                self.violations.append(f"decision {decision} was recorded twice")
            self.booked.update([] if decision is None else [decision])
            self.sums = self.sums + pack(np.array(rows, dtype=float), np.array(rewards, dtype=float))
            self._settled += len(rewards)
        return self.sums


def n_packed() -> int:
    """Numbers in packed statistics."""
    return DIM * (DIM + 1) // 2 + DIM + 3


def dense_numbers(message: SyncRequest | SyncReply) -> np.ndarray:
    """The packed sums of a message; of one with blocks, with zeros between them."""
    if not isinstance(message, BlockSyncRequest | BlockSyncReply):
        return numbers_of(message)
    K, p = message.blocks, DIM // message.blocks
    numbers = numbers_of(message) if isinstance(message, BlockSyncReply) else expanded_numbers(message, K)
    n_pairs = p * (p + 1) // 2
    Sigma = np.zeros((DIM, DIM))
    for k in range(K):
        part = np.zeros((p, p))
        part[np.triu_indices(p)] = numbers[k * n_pairs : (k + 1) * n_pairs]
        Sigma[k * p : (k + 1) * p, k * p : (k + 1) * p] = part
    return np.concatenate([Sigma[np.triu_indices(DIM)], numbers[K * n_pairs :]])


def pack(rows: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """The packed sums of rows and rewards, implemented here so that the harness does not use the code under test."""
    Sigma, b = rows.T @ rows, rows.T @ rewards
    tail = [len(rewards), rewards.sum(), (rewards**2).sum()]
    return np.concatenate([Sigma[np.triu_indices(DIM)], b, tail])
