"""Means and widths by blocks, from the blocks of Σ⁻¹ themselves: for estimates that change with every observation."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.block_rows import split_rows


class _ByBlocks(Protocol):
    @property
    def theta_hat(self) -> Vector: ...
    @property
    def inverse(self) -> Matrix: ...
    def means_of(self, context: Vector) -> Vector: ...
    def widths_of(self, context: Vector) -> Vector: ...


class BlockScores:
    """Scores of rows that lie in one block, and of one context in every block; `inverse` is (K, p, p)."""

    __slots__ = ()

    def predict(self: _ByBlocks, actions: Matrix) -> Vector:
        """⟨θ̂, x⟩ of each row."""
        places, values = split_rows(actions, len(self.inverse))
        return np.asarray(np.vecdot(self.theta_hat.reshape(len(self.inverse), -1)[places], values))

    def widths(self: _ByBlocks, actions: Matrix) -> Vector:
        """‖x‖_{Σ⁻¹} of each row."""
        places, values = split_rows(actions, len(self.inverse))
        forms = np.vecdot(np.vecdot(self.inverse[places], values[:, None, :]), values)
        return np.asarray(np.sqrt(np.maximum(forms, 0.0)))

    def means_of(self: _ByBlocks, context: Vector) -> Vector:
        """⟨θ̂_k, c⟩ of each block."""
        return np.asarray(self.theta_hat.reshape(len(self.inverse), -1) @ context)

    def widths_of(self: _ByBlocks, context: Vector) -> Vector:
        """‖c‖_{Σ_k⁻¹} of each block."""
        return np.asarray(np.sqrt(np.maximum((self.inverse @ context) @ context, 0.0)))

    def upper_of(self: _ByBlocks, context: Vector, beta: float) -> Vector:
        """⟨θ̂_k, c⟩ + β‖c‖_{Σ_k⁻¹} of each block."""
        return self.means_of(context) + beta * self.widths_of(context)
