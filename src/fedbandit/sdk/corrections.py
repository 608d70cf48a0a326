"""Corrections: another reward for an observation that no upload holds yet.

The row and the reward of a decision are kept from its observation until the upload that takes it. A correction adds
the difference to the buffer, which is then what it would be had the new reward been observed at once. What an
upload holds cannot be corrected any more: its sums may have been merged.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbandit.core.arrays import Vector, frozen
from fedbandit.core.statistics import RunningStats, SufficientStats
from fedbandit.errors import NotCorrectable

if TYPE_CHECKING:
    from fedbandit.algorithms.fedlinucb import FedLinUCBAgent

MAX_ROWS = 4096
MAX_BYTES = 4 << 20
# A difference leaves rounding errors of the size of what was taken out; Σr² is this much larger, so that no check of
# the server, relative to what is left, takes them for sums that no data can give.
ALLOWANCE = 1e-12


class RecentRewards:
    """Decisions whose observations are in the buffer, with their rows and rewards; the oldest go first.

    Those of an upload that was made go two at a time, as others come: thousands at once would hold up an observation.
    """

    def __init__(self, dim: int) -> None:
        self._most = max(min(MAX_ROWS, MAX_BYTES // (8 * dim)), 64)
        self._buffer = ("", 0, 0)  # incarnation, uploads that it had made, and the epoch
        # Rows and rewards, with the buffer that they are in; the first `_n_sent` are in an earlier one.
        self._rewards: OrderedDict[int, tuple[Vector, float, tuple[str, int, int]]] = OrderedDict()
        self._n_sent = 0

    def note(self, agent: FedLinUCBAgent, number: int, x: Vector, reward: float, sequence: int) -> None:
        """An observation was added to the buffer; `sequence` is what the agent's was before."""
        if agent.sequence != sequence:  # an upload has it already
            return
        self._follow(agent)
        self._rewards[number] = (x, reward, self._buffer)
        for _ in range(2):
            if self._n_sent > 0:
                self._n_sent -= 1
            elif len(self._rewards) <= self._most:
                break
            self._rewards.popitem(last=False)

    def __len__(self) -> int:
        return len(self._rewards) - self._n_sent

    def __iter__(self) -> Iterator[tuple[int, Vector, float]]:
        known = itertools.islice(self._rewards.items(), self._n_sent, None)
        return iter([(number, x, reward) for number, (x, reward, _) in known])

    def find(self, agent: FedLinUCBAgent, number: int) -> tuple[Vector, float] | None:
        """Row and reward of an observation in the buffer."""
        self._follow(agent)
        x, reward, buffer = self._rewards.get(number, (None, 0.0, None))
        return None if x is None or buffer is not self._buffer else (x, reward)

    def change(self, number: int, reward: float) -> None:
        """The observation has another reward now."""
        self._rewards[number] = (self._rewards[number][0], reward, self._buffer)

    def _follow(self, agent: FedLinUCBAgent) -> None:
        now = (agent.incarnation, agent.sequence, agent.world.epoch)
        if now != self._buffer:
            self._buffer, self._n_sent = now, len(self._rewards)


class Correction(NamedTuple):
    """A correction, as the log has it."""

    number: int
    x: Vector
    old: float
    new: float

    @property
    def difference(self) -> SufficientStats:
        """What it adds to sums that hold the old reward: nothing to Σ and the count."""
        dim = len(self.x)
        change, allowance = self.new - self.old, ALLOWANCE * (self.new * self.new + self.old * self.old)
        squares = self.new * self.new - self.old * self.old + allowance
        return SufficientStats(frozen(np.zeros((dim, dim))), frozen(change * self.x), 0, change, squares)


def corrected_buffer(agent: FedLinUCBAgent, recent: RecentRewards, correction: Correction) -> RunningStats:
    """A buffer with the new reward; to be put in the place of the old one by one assignment.

    Where every observation of the buffer is known, it is made anew from them, and has no rounding error more.
    """
    buffer = RunningStats(agent.dim)
    if agent._local is not None and agent._local.n_obs == len(recent):
        for number, x, reward in recent:
            buffer.observe(x, correction.new if number == correction.number else reward)
        return buffer
    if agent._local is not None:
        buffer.add(agent._local.snapshot())
    buffer.add(correction.difference)
    return buffer


def not_correctable(decision_id: str, *, is_pending: bool) -> NotCorrectable:
    """Why an observation cannot be corrected."""
    if is_pending:
        return NotCorrectable(f"decision {decision_id!r} has no reward yet: observe it")
    return NotCorrectable(
        f"decision {decision_id!r} cannot be corrected: its observation is part of an upload, or of a state that was "
        f"saved since, or was never made here. Only what is unsent and was observed since the last snapshot can be"
    )
