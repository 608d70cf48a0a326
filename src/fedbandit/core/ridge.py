"""The ridge model: estimate, log-determinant and widths from one factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import TIE, Matrix, Vector, frozen
from fedbandit.core.products import BLOCK, gram, inverse_root, product, times_vector
from fedbandit.core.statistics import SufficientStats, pack_symmetric
from fedbandit.errors import InvalidInput
from fedbandit.pauses import pause_point


@dataclass(frozen=True, slots=True)
class Factor:
    """W with Wᵀ W = Σ⁻¹, and log det Σ."""

    W: Matrix
    log_det: float
    least: float = 0.0  # eigenvalue of the correlations, where it was too small to be used as it is


@dataclass(frozen=True, slots=True)
class BlockFactor(Factor):
    """The factors of K blocks: W is (K, p, p), and log det Σ is the sum of `log_dets` (K,)."""

    log_dets: Vector = field(default_factory=lambda: np.empty(0))


def factorise(Sigma: Matrix) -> Factor:
    """Factor of a positive definite Σ (or of its blocks), independent of the scales of the features.

    Σ is brought to unit diagonal first, so features that differ by many decades cost no digits. Where the ridge is lost
    to rounding (Σ numerically singular), eigenvalues are lifted to the rounding level instead of failing.
    """
    if Sigma.ndim == 3:
        return factorise_blocks(Sigma)
    scale = np.sqrt(np.diagonal(Sigma))
    correlation = Sigma / np.multiply.outer(scale, scale)
    pause_point()
    least = 0.0
    try:
        W, log_det = inverse_root(correlation)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(correlation)
        least = float(values[0])
        values = np.maximum(values, len(scale) * np.finfo(float).eps)
        W = vectors.T / np.sqrt(values)[:, None]
        log_det = float(np.log(values).sum())
    pause_point()
    return Factor(frozen(W / scale), log_det + 2.0 * float(np.log(scale).sum()), least)


def factorise_blocks(Sigma: Matrix) -> BlockFactor:
    """The factors of the blocks of Σ (K, p, p), all at once where they are small and well conditioned."""
    if Sigma.shape[-1] <= BLOCK:
        scale = np.sqrt(np.diagonal(Sigma, axis1=1, axis2=2))
        try:
            L = np.linalg.cholesky(Sigma / (scale[:, :, None] * scale[:, None, :]))
        except np.linalg.LinAlgError:
            pass  # one of them needs its eigenvalues lifted
        else:
            W = np.linalg.inv(L)
            log_dets = 2.0 * np.log(np.diagonal(L, axis1=1, axis2=2) * scale).sum(axis=1)
            return BlockFactor(frozen(W / scale[:, None, :]), float(log_dets.sum()), 0.0, frozen(log_dets))
    factors = [factorise(block) for block in Sigma]
    log_dets = np.array([factor.log_det for factor in factors])
    W = np.stack([factor.W for factor in factors])
    return BlockFactor(frozen(W), float(log_dets.sum()), min(factor.least for factor in factors), frozen(log_dets))


class RidgeModel:
    """θ̂ = Σ⁻¹ b with its uncertainty. Immutable; factorised once, when first asked.

    >>> model = RidgeModel(SufficientStats.prior(dim=2, lam=4.0))
    >>> model.theta_hat, round(model.log_det, 6)
    (array([0., 0.]), 2.772589)
    """

    __slots__ = ("_factor", "_inverse", "_scorer", "_spread", "_theta_hat", "stats")

    def __init__(self, stats: SufficientStats) -> None:
        if not hasattr(stats, "Sigma"):
            raise InvalidInput(f"expected sufficient statistics, got {type(stats).__name__}")
        self.stats = stats
        self._factor: Factor | None = None
        self._theta_hat: Vector | None = None
        self._inverse: Matrix | None = None
        self._scorer: Matrix | None = None
        self._spread: float | None = None

    @property
    def factor(self) -> Factor:
        """W and log det Σ."""
        # Two threads may both compute this; they get equal values, so the race is harmless.
        if self._factor is None:
            self._factor = factorise(self.stats.Sigma)
        return self._factor

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self.stats.dim

    @property
    def n_obs(self) -> int:
        """Observations behind the model."""
        return self.stats.n_obs

    @property
    def theta_hat(self) -> Vector:
        """θ̂ = Σ⁻¹ b, (d,) (Algorithm 1, line 14)."""
        if self._theta_hat is None:
            W = self.factor.W
            self._theta_hat = frozen(times_vector(W.T, times_vector(W, self.stats.b)))
        return self._theta_hat

    @property
    def log_det(self) -> float:
        """log det Σ; the determinant itself overflows near d = 100."""
        return self.factor.log_det

    @property
    def inverse(self) -> Matrix:
        """Σ⁻¹, (d, d)."""
        if self._inverse is None:
            W = self.factor.W
            self._inverse = frozen(gram(W))
        return self._inverse

    @property
    def inverse_diagonal(self) -> Vector:
        """The diagonal of Σ⁻¹, (d,)."""
        return np.diagonal(self.inverse, axis1=-2, axis2=-1).reshape(-1)

    def share_weights(self) -> Vector:
        """Packed Σ⁻¹/d with everything off the diagonal doubled, (d(d+1)/2,): ⟨weights, packed A⟩ = tr(Σ⁻¹A)/d.

        Of a part A of Σ that is its share of the information; the shares of all parts add to 1.
        """
        doubled = 2.0 * self.inverse
        np.fill_diagonal(doubled, np.diagonal(self.inverse))
        return pack_symmetric(doubled) / self.dim

    def predict(self, actions: Matrix) -> Vector:
        """Estimated mean reward ⟨θ̂, x⟩ of each row of `actions` (k, d)."""
        return times_vector(actions, self.theta_hat)

    def widths(self, actions: Matrix) -> Vector:
        """Uncertainty ‖x‖_{Σ⁻¹} = √(xᵀ Σ⁻¹ x) of each action.

        `actions` is (k, d), one action per row; the result is (k,).

        >>> RidgeModel(SufficientStats.prior(dim=2, lam=4.0)).widths(np.eye(2))
        array([0.5, 0.5])
        """
        Z = product(actions, self.factor.W.T)
        return np.asarray(np.sqrt(np.vecdot(Z, Z)))

    def whitened(self, actions: Matrix) -> Matrix:
        """W x of each row, (k, d): independent of unit variance under the model, and ‖W x‖ is the width."""
        return product(actions, self.factor.W.T)

    def upper(self, actions: Matrix, beta: float) -> Vector:
        """⟨θ̂, x⟩ + β‖x‖_{Σ⁻¹} of each row (Algorithm 1, line 5), by one product."""
        if self._scorer is None:
            self._scorer = np.ascontiguousarray(np.column_stack([self.factor.W.T, self.theta_hat]))
        Z = product(actions, self._scorer)
        white = Z[:, :-1]
        return np.asarray(Z[:, -1] + beta * np.sqrt(np.vecdot(white, white)))

    def contenders(self, actions: Matrix, beta: float) -> NDArray[np.intp] | None:
        """Rows that can have the best upper bound, found without most quadratic forms; None if that is not faster.

        ‖x‖_{Σ⁻¹} ≤ ‖x‖·√λ_max(Σ⁻¹), so a row whose bound is below the score of another row cannot be the best.
        """
        means = self.predict(actions)
        bounds = means + (beta * self.spread) * np.sqrt(np.vecdot(actions, actions))
        first = int(bounds.argmax())
        z = times_vector(self.factor.W, actions[first])
        score = float(means[first]) + beta * math.sqrt(float(z @ z))
        rows = np.flatnonzero(bounds >= score - TIE * abs(score))
        return rows if 0 < 2 * len(rows) <= len(actions) else None

    @property
    def spread(self) -> float:
        """A number ≥ √λ_max(Σ⁻¹), at most 4 % above it per decade of dimensions: ‖P⁸‖_F^(1/16) with P = Σ⁻¹."""
        if self._spread is None:
            scale = float(np.abs(self.inverse).max())
            power = self.inverse / scale
            pause_point()
            for _ in range(3):
                power = gram(power)  # symmetric, so this is its square for half the work
            # Rounding may lower the norm by a few units in the last place; the margin keeps it a bound.
            self._spread = math.sqrt(scale) * math.sqrt(float(np.vecdot(power, power).sum())) ** 0.0625 * (1.0 + 1e-9)
        return self._spread

    def distance(self, theta: Vector) -> float:
        """‖θ − θ̂‖_Σ, the distance that a confidence radius bounds at θ = θ*."""
        # Through W rather than Σ: W⁻¹ would be needed for the root of Σ, so use the quadratic form itself.
        gap = theta - self.theta_hat
        return math.sqrt(max(float(gap @ self.stats.Sigma @ gap), 0.0))
