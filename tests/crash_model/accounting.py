"""What was observed, which uploads hold it, and what the server must hold. All integers: sums are exact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedbandit.algorithms.messages import Upload, n_packed, packed_bytes
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec

Key = tuple[str, str, int, bytes]  # agent, incarnation, sequence, digest of an upload


class Failure(AssertionError):
    """An observation is lost, counted twice or changed, progress stops, or an error has no name."""


def require(condition: bool, message: str) -> None:
    """Raise `Failure` unless the condition holds."""
    if not condition:
        raise Failure(message)


def numbers_of(stats: SufficientStats) -> np.ndarray:
    """Packed statistics as numbers."""
    return np.frombuffer(packed_bytes(stats), dtype="<f8")


def numbers_in(request: codec.SyncRequest) -> np.ndarray:
    """Packed statistics of a request, with all blocks of its model."""
    if isinstance(request, codec.BlockSyncRequest):
        return codec.expanded_numbers(request, request.blocks)
    return codec.numbers_of(request)


def key_of(upload: Upload) -> Key:
    """The key of an upload, with the digest that it travels with."""
    return upload.agent_id, upload.incarnation, upload.sequence, codec.request_of(upload).digest


class Counts(NamedTuple):
    """What the server counts of an agent."""

    n_obs: int
    n_discarded: int
    epoch: int  # in which its last upload was merged


@dataclass
class Accounting:
    """Observations have numbers (ids); an upload is a tuple of them."""

    blocks: int = 1
    values: list[np.ndarray] = field(default_factory=list)  # by id: what it adds to a model
    weights: list[int] = field(default_factory=list)  # by id: rows
    excused: set[int] = field(default_factory=set)  # may be missing: forgotten, expired, lost with a disk or a backup
    void: set[int] = field(default_factory=set)  # of these, not recorded in the end, or lost with a disk: not counted
    uploads: dict[Key, tuple[int, ...]] = field(default_factory=dict)  # all that were ever sent
    dropped: dict[Key, tuple[int, ...]] = field(default_factory=dict)  # reported with an upload: of an earlier epoch
    merged: set[Key] = field(default_factory=set)  # uploads that the server counts, as merged or as discarded
    fates: dict[Key, int | None] = field(default_factory=dict)  # of these: the epoch of its sums; None: discarded
    versions: set[tuple[int, bytes]] = field(default_factory=set)  # states that a server served, by digest
    forgotten: set[str] = field(default_factory=set)  # incarnations
    groups: list[GroupSums] = field(default_factory=list)  # rewards by group of each observation

    def add(self, rows: np.ndarray, rewards: np.ndarray, group: str = "") -> int:
        """A new observation, or a batch of them as one; of a group, where the model has a control group."""
        self.groups.append(NO_GROUPS.observe(group, float(rewards[0])) if group else NO_GROUPS)
        self.values.append(numbers_of(SufficientStats.of(rows, rewards, blocks=self.blocks)))
        self.weights.append(len(rows))
        return len(self.values) - 1

    def cancel(self, number: int) -> None:
        """Exclude this observation."""
        self.void.add(number)
        self.excused.add(number)

    def sum_of(self, ids: Iterable[int]) -> np.ndarray:
        """The sum of these observations."""
        dim = 2 * self.blocks
        return sum((self.values[number] for number in ids), np.zeros(n_packed(dim, self.blocks)))

    def groups_of(self, ids: Iterable[int]) -> GroupSums:
        """The rewards by group of these observations."""
        return sum((self.groups[number] for number in ids), NO_GROUPS)

    def weight_of(self, ids: Iterable[int]) -> int:
        """The rows of these observations."""
        return sum(self.weights[number] for number in ids)

    def ids_of(self, key: Key) -> tuple[int, ...]:
        """All that an upload brings to the server: its observations, and those that it reports as dropped."""
        return (*self.uploads.get(key, ()), *self.dropped.get(key, ()))

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
        return [number for key in self.merged for number in self.ids_of(key)]

    def counts_of(self, name: str) -> tuple[int, int]:
        """Rows of an agent that the server must count as merged, and as discarded."""
        theirs = [key for key in self.merged if key[0] == name]
        n_obs = sum(self.weight_of(self.uploads[key]) for key in theirs if self.fates[key] is not None)
        return n_obs, sum(self.weight_of(self.ids_of(key)) for key in theirs) - n_obs

    def merge(self, key: Key, counts: Counts) -> None:
        """The server has counted an upload: as merged or as discarded, which its own counts tell."""
        n_merged, n_discarded = self.counts_of(key[0])
        n, n_dropped = self.weight_of(self.uploads[key]), self.weight_of(self.dropped.get(key, ()))
        found = counts.n_obs - n_merged, counts.n_discarded - n_discarded
        require(
            found in ((n, n_dropped), (0, n + n_dropped)),
            f"an upload of {n} rows that reports {n_dropped} dropped ones was counted as {found}: merged, discarded",
        )
        self.fates[key] = counts.epoch if found[0] else None
        self.merged.add(key)

    def note(self, line: list[int], request: codec.SyncRequest, *, sent: set[Key], may_differ: bool) -> list[int]:
        """Record an upload that is sent; the remaining unsent observations of its agent."""
        key = (request.agent, request.incarnation, request.sequence, request.digest)
        if key in sent:
            return line
        sent.add(key)
        numbers = numbers_in(request)
        if key in self.uploads:
            return self._same_again(line, key, numbers)
        changed = any(key[:3] == other[:3] for other in self.uploads)
        require(may_differ or not changed, f"upload {key[:3]} has changed since it was first sent")
        n = self.first(line, int(numbers[-3]))
        ids = tuple(line[:n])
        require(np.array_equal(self.sum_of(ids), numbers), f"upload {key[:3]} is not what its agent observed: {ids}")
        require(self.groups_of(ids) == codec.groups_of(request), f"upload {key[:3]} has rewards in other groups: {ids}")
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

    def check_server(
        self,
        state: np.ndarray,
        prior: np.ndarray,
        groups: GroupSums,
        apart: frozenset[str] = frozenset(),
        epoch: int = 0,
    ) -> None:
        """Conservation, exactly once; the model has no sums of agents in quarantine, and none of earlier epochs."""
        ids = self.merged_ids()
        if len(set(ids)) < len(ids):
            twice = sorted({number for number in ids if ids.count(number) > 1})
            where = [f"{key[1][:6]}/{key[2]}" for key in self.merged if set(self.ids_of(key)) & set(twice)]
            raise Failure(f"the server counts observations {twice} twice, in uploads {where}")
        counted = [key for key in self.merged if self.fates[key] is not None and key[0] not in apart]
        ids = [number for key in counted for number in self.uploads[key]]
        expected = prior + self.sum_of(
            number for key in counted if self.fates[key] == epoch for number in self.uploads[key]
        )
        if not np.array_equal(state, expected):
            raise Failure(f"the server does not hold each merged upload once: {state - expected} too much")
        require(groups == self.groups_of(ids), f"the server has {groups} by group, not {self.groups_of(ids)}")
