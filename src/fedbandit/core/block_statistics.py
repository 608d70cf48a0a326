"""The buffer of an agent whose model has blocks: an observation costs O(p²), whatever their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, frozen
from fedbandit.core.group_sums import NO_GROUPS
from fedbandit.core.statistics import RunningStats, SufficientStats

TOTALS = -1  # key of n_obs, Σr and Σr² beside the sums of blocks
NOTHING = (0, 0.0, 0.0)


class BlockRunningStats(RunningStats):
    """`RunningStats` by blocks: sums only of the blocks that observations touched; rows are compact ones.

    Every change takes effect by one call or assignment, as in `RunningStats`.
    """

    __slots__ = ("_blocks", "_held")

    def __init__(self, dim: int, blocks: int) -> None:
        self._blocks = blocks
        self.groups = NO_GROUPS
        # What was added as sums, and Σ and b of each block that was observed since, with their totals.
        self._held: tuple[SufficientStats, dict[int, Any]] = (SufficientStats.zeros(dim, blocks), {})

    @property
    def n_obs(self) -> int:
        """Number of observations."""
        sums, touched = self._held
        return int(sums.n_obs + touched.get(TOTALS, NOTHING)[0])

    def observe(self, x: Vector, reward: float) -> None:
        """Add one compact row."""
        touched = self._held[1]
        block, values = int(x[0]), x[1:]
        outer = np.multiply.outer(values, values)
        moment = reward * values
        known = touched.get(block)
        if known is not None:
            outer += known[0]
            moment += known[1]
        n_obs, total, squares = touched.get(TOTALS, NOTHING)
        # One call, which no signal handler interrupts.
        touched.update({block: (outer, moment), TOTALS: (n_obs + 1, total + reward, squares + reward * reward)})

    def add(self, stats: SufficientStats) -> None:
        """Add statistics that were summed elsewhere."""
        self._held = (self.snapshot() + stats, {})

    def block_of(self, block: int) -> Matrix:
        """Σ x xᵀ of one block so far."""
        sums, touched = self._held
        known = touched.get(block)
        Sigma: Matrix = sums.Sigma[block]
        return Sigma if known is None else Sigma + known[0]

    def snapshot(self) -> SufficientStats:
        """An immutable copy."""
        sums, touched = self._held
        if not touched:
            return sums
        Sigma, b = sums.Sigma.copy(), sums.b.reshape(self._blocks, -1).copy()
        n_obs, total, squares = touched[TOTALS]
        for block, value in touched.items():
            if block != TOTALS:
                Sigma[block] += value[0]
                b[block] += value[1]
        return SufficientStats(
            frozen(Sigma),
            frozen(b.reshape(-1)),
            sums.n_obs + n_obs,
            sums.reward_sum + total,
            sums.reward_sq_sum + squares,
        )

    def clear(self) -> None:
        """Back to no data (Algorithm 1, line 11)."""
        self._held = (SufficientStats.zeros(self._held[0].dim, self._blocks), {})
        self.groups = NO_GROUPS
