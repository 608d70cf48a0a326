"""The ridge model by blocks: one small factorisation per block, batched, instead of one large one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector, frozen
from fedbandit.core.block_rows import split_rows
from fedbandit.core.products import MAX_ENTRIES
from fedbandit.core.ridge import BlockFactor, RidgeModel, factorise_blocks
from fedbandit.core.statistics import SufficientStats, pack_symmetric


class BlockRidgeModel(RidgeModel):
    """θ̂ = Σ⁻¹ b where Σ has K blocks (K, p, p): K·p³ instead of (K·p)³, and exactly the same numbers.

    `inverse` and `factor.W` are (K, p, p), `theta_hat` is (d,). Rows may be full ones (k, d), each in one block;
    `upper_of` scores one context in every block without rows.
    """

    __slots__ = ("_stacked",)

    def __init__(self, stats: SufficientStats) -> None:
        super().__init__(stats)
        self._stacked: list[Matrix] | None = None

    @property
    def factor(self) -> BlockFactor:
        """W and log det of each block."""
        if self._factor is None:
            self._factor = factorise_blocks(self.stats.Sigma)
        assert isinstance(self._factor, BlockFactor)
        return self._factor

    @property
    def blocks(self) -> int:
        """Number of blocks K."""
        return len(self.stats.Sigma)

    @property
    def theta_hat(self) -> Vector:
        """θ̂ = Σ⁻¹ b, (d,)."""
        if self._theta_hat is None:
            W = self.factor.W
            z = W @ self.stats.b.reshape(self.blocks, -1, 1)
            self._theta_hat = frozen((W.transpose(0, 2, 1) @ z).reshape(-1))
        return self._theta_hat

    @property
    def inverse(self) -> Matrix:
        """The blocks of Σ⁻¹, (K, p, p)."""
        if self._inverse is None:
            W = self.factor.W
            self._inverse = frozen(W.transpose(0, 2, 1) @ W)
        return self._inverse

    def share_weights(self) -> Vector:
        """Packed blocks of Σ⁻¹/d with everything off the diagonals doubled, (K·p(p+1)/2,)."""
        doubled = 2.0 * self.inverse
        at = np.arange(doubled.shape[-1])
        doubled[:, at, at] = self.inverse[:, at, at]
        return pack_symmetric(doubled) / self.dim

    def predict(self, actions: Matrix) -> Vector:
        """Estimated mean reward of each row."""
        places, values = split_rows(actions, self.blocks)
        return np.asarray(np.vecdot(self.theta_hat.reshape(self.blocks, -1)[places], values))

    def widths(self, actions: Matrix) -> Vector:
        """Uncertainty of each row."""
        return self._widths(*split_rows(actions, self.blocks))

    def whitened(self, actions: Matrix) -> Matrix:
        """W x of each row, (k, d): zero outside the row's block."""
        places, values = split_rows(actions, self.blocks)
        Z = np.zeros((len(places), self.blocks, values.shape[1]))
        Z[np.arange(len(places)), places] = np.vecdot(self.factor.W[places], values[:, None, :])
        return Z.reshape(len(places), -1)

    def upper(self, actions: Matrix, beta: float) -> Vector:
        """⟨θ̂, x⟩ + β‖x‖_{Σ⁻¹} of each row."""
        places, values = split_rows(actions, self.blocks)
        means = np.vecdot(self.theta_hat.reshape(self.blocks, -1)[places], values)
        return np.asarray(means + beta * self._widths(places, values))

    def _widths(self, places: NDArray[np.intp], values: Matrix) -> Vector:
        W = self.factor.W
        widths = np.empty(len(places))
        for at in range(0, len(places), 1024):  # the copies of W's blocks stay small
            part = slice(at, at + 1024)
            Z = np.vecdot(W[places[part]], values[part][:, None, :])
            widths[part] = np.sqrt(np.vecdot(Z, Z))
        return widths

    def contenders(self, actions: Matrix, beta: float) -> NDArray[np.intp] | None:
        """None: a quadratic form costs p² only."""
        return None

    # -- one context, every block --------------------------------------------------------------------------------

    def means_of(self, context: Vector) -> Vector:
        """⟨θ̂_k, c⟩ of each block k, (K,)."""
        return np.asarray(self.theta_hat.reshape(self.blocks, -1) @ context)

    def widths_of(self, context: Vector) -> Vector:
        """‖c‖_{Σ_k⁻¹} of each block k, (K,)."""
        p = len(context)
        Z = np.concatenate([part @ context for part in self._pieces()]).reshape(self.blocks, p)
        return np.asarray(np.sqrt(np.vecdot(Z, Z)))

    def upper_of(self, context: Vector, beta: float) -> Vector:
        """⟨θ̂_k, c⟩ + β‖c‖_{Σ_k⁻¹} of each block k, (K,)."""
        return self.means_of(context) + beta * self.widths_of(context)

    def _pieces(self) -> list[Matrix]:
        """W as a tall matrix (K·p, p), in pieces too small for a BLAS library to use its threads."""
        if self._stacked is None:
            p = self.stats.Sigma.shape[-1]
            W = np.ascontiguousarray(self.factor.W).reshape(-1, p)
            size = max(MAX_ENTRIES // p, 1)
            self._stacked = [W[at : at + size] for at in range(0, len(W), size)]
        return self._stacked

    # -- the rest ------------------------------------------------------------------------------------------------

    @property
    def spread(self) -> float:
        """A number ≥ √λ_max(Σ⁻¹), the one of the dense model: tr(P¹⁶) is a sum over blocks."""
        if self._spread is None:
            scale = np.abs(self.inverse).max(axis=(1, 2))
            power = self.inverse / scale[:, None, None]
            for _ in range(3):
                power = power @ power
            norms = np.sqrt(scale) * np.sqrt((power * power).sum(axis=(1, 2))) ** 0.0625
            most = float(norms.max())
            self._spread = most * float(((norms / most) ** 32).sum()) ** 0.03125 * (1.0 + 1e-9)
        return self._spread

    def distance(self, theta: Vector) -> float:
        """‖θ − θ̂‖_Σ."""
        gap = (theta - self.theta_hat).reshape(self.blocks, -1)
        return math.sqrt(max(float(np.einsum("ki,kij,kj->", gap, self.stats.Sigma, gap)), 0.0))
