"""Has the world changed? A block of new observations against a model that does not contain it.

If rewards are still ⟨θ*, x⟩ plus noise of scale R, then e = b_B − S_B θ̂ has covariance R²(S_B + S_B Σ⁻¹ S_B), and
Q = eᵀ(S_B + S_B Σ⁻¹ S_B)⁻¹ e / R² is χ² with as many degrees of freedom as the block has directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.block_packing import touched_blocks
from fedbandit.core.chi_square import upper_quantile
from fedbandit.core.products import product, times_vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model, running_stats

NEGLIGIBLE = 1e-12  # of the information in a block: a direction with less was not observed


@dataclass(frozen=True, slots=True)
class ChangeTest:
    """The statistic of one block, and the level above which it is an alarm."""

    statistic: float  # Q
    n_degrees: int  # of its χ² distribution: what it is on average if nothing changed
    level: float  # of an alarm

    @property
    def is_alarm(self) -> bool:
        """Whether Q is too large for chance."""
        return self.statistic > self.level


def change_statistic(block: SufficientStats, model: RidgeModel, *, noise_scale: float) -> float:
    """Q = eᵀ(S_B + S_B Σ⁻¹ S_B)⁻¹ e / R² with e = b_B − S_B θ̂; the block's data must not be in the model.

    In the coordinates of W (WᵀW = Σ⁻¹) with A = W S_B Wᵀ it is Σ f_i² / (a_i (1 + a_i)) over the eigenvalues a_i of A;
    directions that the block lacks are left out.
    """
    return _comparison(block, model).statistic / noise_scale**2


class _Comparison:
    """A block and a model in coordinates in which Σ is the identity and S_B is diagonal."""

    def __init__(self, block: SufficientStats, model: RidgeModel) -> None:
        W = model.factor.W
        A = product(product(W, block.Sigma), W.T)
        self.values, vectors = np.linalg.eigh(0.5 * (A + A.T))
        self.T = product(vectors.T, W)  # TᵀT = Σ⁻¹, and T S_B Tᵀ is diagonal
        self.block, self.model = block, model

    @property
    def statistic(self) -> float:
        """Q R²."""
        block, model = self.block, self.model
        seen = self.values > NEGLIGIBLE * float(self.values[-1])
        parts = times_vector(self.T, block.b - times_vector(block.Sigma, model.theta_hat))[seen]
        return float((parts**2 / (self.values[seen] * (1.0 + self.values[seen]))).sum())

    @property
    def theta_size(self) -> float:
        """‖θ̂‖ of the model and the block together."""
        pooled = times_vector(self.T, self.model.stats.b + self.block.b) / (1.0 + np.maximum(self.values, 0.0))
        theta = times_vector(self.T.T, pooled)
        return math.sqrt(float(theta @ theta))


class _BlockComparison(_Comparison):
    """The same where Σ has blocks: sums over those that the observations touched."""

    def __init__(self, block: SufficientStats, model: RidgeModel) -> None:
        self.block, self.model = block, model
        self.places = touched_blocks(block)
        W = model.factor.W[self.places]
        A = W @ block.Sigma[self.places] @ W.transpose(0, 2, 1)
        self.values, vectors = np.linalg.eigh(0.5 * (A + A.transpose(0, 2, 1)))
        self.T = vectors.transpose(0, 2, 1) @ W

    @property
    def statistic(self) -> float:
        """Q R²."""
        seen = self.values > NEGLIGIBLE * float(self.values.max(initial=0.0))
        fitted = np.vecdot(self.block.Sigma[self.places], self._parts_of(self.model.theta_hat)[:, None, :])
        parts = np.vecdot(self.T, (self._parts_of(self.block.b) - fitted)[:, None, :])[seen]
        return float((parts**2 / (self.values[seen] * (1.0 + self.values[seen]))).sum())

    @property
    def theta_size(self) -> float:
        """‖θ̂‖ of the model and the block together; it is the model's where nothing was observed."""
        sums = self._parts_of(self.model.stats.b + self.block.b)
        pooled = np.vecdot(self.T, sums[:, None, :]) / (1.0 + np.maximum(self.values, 0.0))
        theta = self.model.theta_hat.reshape(self.block.blocks, -1).copy()
        theta[self.places] = np.vecdot(self.T.transpose(0, 2, 1), pooled[:, None, :])
        return math.sqrt(float(np.vecdot(theta, theta).sum()))

    def _parts_of(self, v: Vector) -> Matrix:
        """The touched parts of a vector (d,), one per row."""
        return v.reshape(self.block.blocks, -1)[self.places]


def _comparison(block: SufficientStats, model: RidgeModel) -> _Comparison:
    return _Comparison(block, model) if block.blocks == 1 else _BlockComparison(block, model)


@dataclass(frozen=True, slots=True)
class ChangeSensitivity:
    """What a test must know: R, λ, ‖θ*‖ ≤ S, and how rare a false alarm is."""

    noise_scale: float
    lam: float
    theta_bound: float
    false_alarm: float

    def test(self, block: SufficientStats, model: RidgeModel) -> ChangeTest:
        """The test of a block against a model that does not contain it.

        The ridge makes a model with little data differ from θ* by more than noise does, by at most λ S √λ_max(Σ⁻¹) / R
        in √Q: the level allows for that, with the larger of the declared S and the estimate from all data at hand.
        """
        comparison = _comparison(block, model)
        n_degrees = self.n_degrees(block)
        bias = self.lam * max(self.theta_bound, comparison.theta_size) * model.spread / self.noise_scale
        level = (math.sqrt(upper_quantile(self.false_alarm, n_degrees)) + bias) ** 2
        return ChangeTest(comparison.statistic / self.noise_scale**2, n_degrees, level)

    def n_degrees(self, block: SufficientStats) -> int:
        """min(n, d): a block of few observations has few directions."""
        return max(min(block.n_obs, block.dim), 1)


class ChangeDetector:
    """Blocks of n₀, 2n₀, 4n₀, … observations, each tested against the model at its start.

    Short blocks find large changes soon, long ones small changes late. Two blocks of a level make one of the
    next, so an observation is added once. In a model with `column_blocks`, one per arm, rows are compact ones.
    """

    def __init__(
        self, dim: int, *, first: int, n_levels: int, sensitivity: ChangeSensitivity, column_blocks: int = 1
    ) -> None:
        self.dim, self.first, self.n_levels, self.sensitivity = dim, first, n_levels, sensitivity
        self._rows = running_stats(dim, column_blocks)  # the block of the first level
        self._blocks: dict[int, SufficientStats] = {}  # of the other levels, where there is data
        self._references: dict[int, RidgeModel] = {}  # the model at the start of each block

    def observe(self, x: Any, reward: float, model: RidgeModel) -> ChangeTest | None:
        """Add an observation; the test that is an alarm, if one is. `model` is the current one."""
        self._references.setdefault(0, model)
        self._rows.observe(x, reward)
        return None if self._rows.n_obs < self.first else self._close(model)

    def add(self, stats: SufficientStats, before: RidgeModel, after: RidgeModel) -> ChangeTest | None:
        """Add many observations at once; `before` is the model without them, `after` the current one."""
        self._references.setdefault(0, before)
        self._rows.add(stats)
        return None if self._rows.n_obs < self.first else self._close(after)

    def clear(self) -> None:
        """Start again, with the next observation."""
        self._rows.clear()
        self._blocks.clear()
        self._references.clear()

    def _close(self, model: RidgeModel) -> ChangeTest | None:
        """Test the blocks that are complete, and start new ones at the current model."""
        alarm: ChangeTest | None = None
        block, size = self._rows.snapshot(), self.first
        self._rows.clear()
        for level in range(self.n_levels):
            reference = self._references[level]
            test = self.sensitivity.test(block, reference)
            if test.is_alarm:
                alarm = alarm or test
            self._references[level] = model
            if level + 1 == self.n_levels:
                break
            self._references.setdefault(level + 1, reference)
            half = self._blocks.pop(level + 1, None)
            block, size = block if half is None else half + block, 2 * size
            if block.n_obs < size:
                self._blocks[level + 1] = block
                break
        return alarm

    # -- saving

    def state(self) -> dict[str, Any]:
        """Blocks and models as statistics by level; a restored detector continues where this one is."""
        blocks = {0: self._rows.snapshot(), **self._blocks}
        return {
            "blocks": {str(level): block for level, block in blocks.items() if block.n_obs},
            "references": {str(level): model.stats for level, model in self._references.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.clear()
        blocks = {int(level): block for level, block in state["blocks"].items()}
        if 0 in blocks:
            self._rows.add(blocks.pop(0))
        self._blocks = blocks
        known: dict[int, RidgeModel] = {}
        for level, stats in state["references"].items():
            self._references[int(level)] = known.setdefault(id(stats), ridge_model(stats))
