"""What was observed, which uploads hold it, and what the server must hold. All integers: sums are exact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec
from tests.crash_model.virtual import Key

LENGTH = 8  # numbers in packed statistics of two features
ZEROS = np.zeros(LENGTH)


class Failure(AssertionError):
    """An observation is lost, counted twice or changed, progress stops, or an error has no name."""


def require(condition: bool, message: str) -> None:
    """Raise `Failure` unless the condition holds."""
    if not condition:
        raise Failure(message)


def numbers_of(stats: SufficientStats) -> np.ndarray:
    """Packed statistics as numbers."""
    return np.frombuffer(packed_bytes(stats), dtype="<f8")


@dataclass
class Accounting:
    """Observations have numbers (ids); an upload is a tuple of them."""

    values: list[np.ndarray] = field(default_factory=list)  # by id: what it adds to a model
    weights: list[int] = field(default_factory=list)  # by id: rows
    excused: set[int] = field(default_factory=set)  # may be missing: forgotten, expired, lost with a disk or a backup
    void: set[int] = field(default_factory=set)  # of these, not recorded in the end, or lost with a disk: not counted
    uploads: dict[Key, tuple[int, ...]] = field(default_factory=dict)  # all that were ever sent
    merged: set[Key] = field(default_factory=set)
    versions: set[tuple[int, bytes]] = field(default_factory=set)  # states that a server served
    forgotten: set[str] = field(default_factory=set)  # incarnations

    def add(self, rows: np.ndarray, rewards: np.ndarray) -> int:
        """A new observation, or a batch of them as one."""
        self.values.append(numbers_of(SufficientStats.of(rows, rewards)))
        self.weights.append(len(rows))
        return len(self.values) - 1

    def cancel(self, number: int) -> None:
        """Exclude this observation."""
        self.void.add(number)
        self.excused.add(number)

    def sum_of(self, ids: Iterable[int]) -> np.ndarray:
        """The sum of these observations."""
        return sum((self.values[number] for number in ids), ZEROS)

    def first(self, line: list[int], n_obs: int) -> int:
        """How many entries of a line make up this many rows."""
        n, left = 0, n_obs
        while left > 0 and n < len(line):
            left -= self.weights[line[n]]
            n += 1
        require(left == 0, f"an upload of {n_obs} rows does not end between two of {line}")
        return n

    def merged_ids(self) -> list[int]:
        """Every observation in the server, with multiplicity."""
        return [number for key in self.merged for number in self.uploads[key]]

    def note(self, line: list[int], request: codec.SyncRequest, *, sent: set[Key], may_differ: bool) -> list[int]:
        """Record an upload that is sent; the remaining unsent observations of its agent."""
        key = (request.agent, request.incarnation, request.sequence, request.digest)
        if key in sent:
            return line
        sent.add(key)
        numbers = codec.numbers_of(request)
        if key in self.uploads:
            return self._same_again(line, key, numbers)
        changed = any(key[:3] == other[:3] for other in self.uploads)
        require(may_differ or not changed, f"upload {key[:3]} has changed since it was first sent")
        n = self.first(line, int(numbers[-3]))
        ids = tuple(line[:n])
        require(np.array_equal(self.sum_of(ids), numbers), f"upload {key[:3]} is not what its agent observed: {ids}")
        self.uploads[key] = ids
        return line[n:]

    def _same_again(self, line: list[int], key: Key, numbers: np.ndarray) -> list[int]:
        """A copy of its agent has sent it already: the same observations, or others that happen to be equal."""
        rest = self.without(line, key)
        if len(rest) < len(line):
            return rest
        n = self.first(line, int(numbers[-3])) if sum(self.weights[i] for i in line) >= numbers[-3] else 0
        if n and np.array_equal(self.sum_of(line[:n]), numbers):
            self.excused |= set(line[:n])  # they cannot be distinguished from a retry
            return line[n:]
        return line

    def without(self, line: list[int], key: Key) -> list[int]:
        """The line without an upload that a copy of its agent has sent already, to the last bit the same."""
        ids = list(self.uploads[key])
        return line[len(ids) :] if line[: len(ids)] == ids else line

    def check_server(self, state: np.ndarray, prior: np.ndarray, apart: frozenset[str] = frozenset()) -> None:
        """Conservation, exactly once; what agents in quarantine sent is not in the model."""
        ids = self.merged_ids()
        if len(set(ids)) < len(ids):
            twice = sorted({number for number in ids if ids.count(number) > 1})
            where = [f"{key[1][:6]}/{key[2]}" for key in self.merged if set(self.uploads[key]) & set(twice)]
            raise Failure(f"the server counts observations {twice} twice, in uploads {where}")
        if apart:
            ids = [number for key in self.merged if key[0] not in apart for number in self.uploads[key]]
        expected = prior + self.sum_of(ids)
        if not np.array_equal(state, expected):
            raise Failure(f"the server does not hold each merged upload once: {state - expected} too much")
