"""Growth and the eager estimate by blocks: an observation touches one block, O(p²); log det Σ is a sum over blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, frozen
from fedbandit.core.block_ridge import BlockRidgeModel
from fedbandit.core.block_scores import BlockScores
from fedbandit.core.block_statistics import BlockRunningStats
from fedbandit.core.eager import EagerEstimate
from fedbandit.core.growth import GrowthTracker
from fedbandit.core.ridge import factorise_blocks
from fedbandit.core.statistics import SufficientStats


class BlockGrowthTracker(GrowthTracker):
    """`GrowthTracker` by blocks: one small tracker for each block that was touched; rows are compact ones.

    `P` belongs to the model and stays as it is; `inverse_of` has the current inverse of a block.
    """

    __slots__ = ("_last", "_model", "_touched")

    def __init__(self, model: BlockRidgeModel) -> None:
        self._model = model
        self.P = model.inverse
        self.log_det_base = model.log_det
        self.value = 0.0
        self._touched: dict[int, GrowthTracker] = {}
        self._last: int | None = None  # block of the last observation: only it can have become stale

    def observe(self, x: Vector) -> float:
        """Add a compact row; returns the growth so far."""
        block = int(x[0])
        tracker = self._tracker_of(block)
        before = tracker.value
        self.value += tracker.observe(x[1:]) - before
        self._last = block
        return self.value

    def observe_rows(self, X: Matrix) -> float:
        """Add compact rows (n, p + 1)."""
        for x in X:
            self.observe(x)
        return self.value

    def inverse_of(self, block: int) -> Matrix:
        """Σ_now⁻¹ of one block."""
        tracker = self._touched.get(block)
        inverse: Matrix = self.P[block] if tracker is None else tracker.P
        return inverse

    def inverse_now(self) -> Matrix:
        """A copy of the blocks of Σ_now⁻¹, (K, p, p)."""
        inverse = self.P.copy()
        for block, tracker in self._touched.items():
            inverse[block] = tracker.P
        return inverse

    @property
    def touched(self) -> list[int]:
        """Blocks to which anything was added."""
        return list(self._touched)

    @property
    def is_stale(self) -> bool:
        """Whether rounding may have built up in the block that was touched last."""
        return self._last is not None and self._touched[self._last].is_stale

    @property
    def is_due(self) -> bool:
        """Whether a postponed restart should be made by another thread now."""
        return self._last is not None and self._touched[self._last].is_due

    @property
    def is_overdue(self) -> bool:
        """Whether a postponed restart can be postponed no further."""
        return self._last is not None and self._touched[self._last].is_overdue

    @property
    def is_at_base(self) -> bool:
        """Whether nothing was added to Σ_base."""
        return not self._touched and self.value == 0.0

    def rebase(self) -> None:
        """Count growth from Σ_now on."""
        for tracker in self._touched.values():
            tracker.rebase()
        super().rebase()

    def restart(self, Sigma_now: Matrix) -> None:
        """Exact again, from fresh factorisations of the blocks of Σ_now that differ from the base."""
        changed = np.flatnonzero((Sigma_now != self._model.stats.Sigma).any(axis=(1, 2))).tolist()
        blocks = sorted({*changed, *self._touched})
        if blocks:
            factor = factorise_blocks(Sigma_now[blocks])
            inverses = factor.W.transpose(0, 2, 1) @ factor.W
            for block, P, log_det in zip(blocks, inverses, factor.log_dets.tolist(), strict=True):
                known = self._touched.get(block)
                base = float(self._model.factor.log_dets[block]) if known is None else known.log_det_base
                tracker = self._touched[block] = GrowthTracker(P, base)
                tracker.value = log_det - base
        self.value = sum(tracker.value for tracker in self._touched.values())
        self._last = None

    def restart_last(self, Sigma_of: Callable[[int], Matrix]) -> None:
        """Exact again in the block that was touched last, given Σ_now of a block (p, p)."""
        if self._last is not None:
            self.restart_block(self._last, Sigma_of(self._last))

    def restart_block(self, block: int, Sigma_now: Matrix) -> None:
        """Exact again in one block, given its Σ_now (p, p)."""
        tracker = self._tracker_of(block)
        before = tracker.value
        tracker.restart(Sigma_now)
        self.value += tracker.value - before

    def _tracker_of(self, block: int) -> GrowthTracker:
        tracker = self._touched.get(block)
        if tracker is None:
            tracker = GrowthTracker(self.P[block], float(self._model.factor.log_dets[block]))
            self._touched[block] = tracker
        return tracker

    def state(self) -> dict[str, Any]:
        """The complete state as plain values."""
        return {
            "log_det_base": self.log_det_base,
            "value": self.value,
            "blocks": {str(block): tracker.state() for block, tracker in self._touched.items()},
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], model: BlockRidgeModel) -> BlockGrowthTracker:
        """The tracker of a dictionary made by `state`; blocks that were not touched are as in the model."""
        tracker = cls(model)
        tracker.log_det_base, tracker.value = float(state["log_det_base"]), float(state["value"])
        p = model.stats.Sigma.shape[-1]
        tracker._touched = {int(k): GrowthTracker.from_state(own, p) for k, own in state["blocks"].items()}
        return tracker


class BlockEagerEstimate(BlockScores, EagerEstimate):
    """`EagerEstimate` by blocks."""

    __slots__ = ("_P", "_theta")

    def __init__(self, stats: SufficientStats) -> None:
        self.stats = BlockRunningStats(stats.dim, stats.blocks)
        self.stats.add(stats)
        model = BlockRidgeModel(stats)
        self._use_tracker(BlockGrowthTracker(model), model.theta_hat)

    def _use_tracker(self, tracker: BlockGrowthTracker, theta_hat: Vector | None) -> None:
        self.tracker = tracker
        self._P: Matrix = tracker.inverse_now()
        self._theta_hat = theta_hat

    def restore_tracker(self, state: dict[str, Any]) -> None:
        """Continue with a tracker saved by `GrowthTracker.state`."""
        assert isinstance(self.tracker, BlockGrowthTracker)
        self._use_tracker(BlockGrowthTracker.of_state(state, self.tracker._model), None)

    def observe(self, x: Vector, reward: float) -> None:
        """Add one compact row."""
        assert isinstance(self.stats, BlockRunningStats)
        assert isinstance(self.tracker, BlockGrowthTracker)
        self.stats.observe(x, reward)
        self.tracker.observe(x)
        block = int(x[0])
        if self.tracker.is_stale:
            self.tracker.restart_block(block, self.stats.block_of(block))
        self._P[block] = self.tracker.inverse_of(block)
        self._theta_hat = None

    def add(self, stats: SufficientStats) -> None:
        """Add data that was summed elsewhere."""
        super().add(stats)
        assert isinstance(self.tracker, BlockGrowthTracker)
        self._use_tracker(self.tracker, None)

    @property
    def theta_hat(self) -> Vector:
        """θ̂ = Σ⁻¹ b."""
        if self._theta_hat is None:
            b = self.stats.b.reshape(len(self._P), -1)
            self._theta_hat = frozen((self._P @ b[:, :, None]).reshape(-1))
        return self._theta_hat

    @property
    def inverse(self) -> Matrix:
        """The blocks of Σ⁻¹; a view that the next observation changes."""
        return self._P

    def whitened(self, actions: Matrix) -> Matrix:
        """W x of each row, (k, d); factorises every block."""
        return BlockRidgeModel(self.stats.snapshot()).whitened(actions)
