"""What the fleet knows besides an agent, as the prior of that agent's own parameter; numerics of `fb.personal`.

Σ_o = Σ_m − U, b_o = b_m − u is what the others know, λI included, and θ_o = Σ_o⁻¹b_o their estimate. With
θ_m = θ + δ_m, δ_m ~ N(0, κR²I), the agent's own parameter has the prior N(θ_o, R²P⁻¹), P = (Σ_o⁻¹ + κI)⁻¹; with its own
sums (A, c) the estimate is Λ = P + A, θ̂ = Λ⁻¹(Pθ_o + c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, frozen
from fedbandit.core.block_products import root, squared, times, transposed
from fedbandit.core.block_rows import split_rows
from fedbandit.core.block_scores import BlockScores
from fedbandit.core.products import product, times_vector
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import SufficientStats

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Others:
    """What the fleet knows besides an agent."""

    Sigma: Matrix  # Σ_o ⪰ λI; where it has blocks, (K, p, p), as are the matrices below
    b: Vector
    theta: Vector  # θ_o = Σ_o⁻¹ b_o
    inverse: Matrix  # Σ_o⁻¹
    log_det: float
    noise: float  # mean squared residual of the others' own fit; 0 where there are none


@dataclass(frozen=True, slots=True)
class PersonalPrior:
    """P and h = Pθ_o of one κ."""

    kappa: float
    P: Matrix
    h: Vector
    log_det: float


def others_of(model: SufficientStats, held: SufficientStats, lam: float) -> Others | None:
    """What is left of a model without the part `held` (U, u) of one agent; None if the model cannot hold that part.

    Rounding of the difference is relative to Σ_m. Where it hides what the others know (Σ_o near its rounding error),
    they are taken to know nothing beyond λI, which is never more than they do know.
    """
    left = model if held.n_obs == 0 else model - held
    scale = np.sqrt(np.diagonal(model.Sigma, axis1=-2, axis2=-1))
    correlation = left.Sigma / (scale[..., :, None] * scale[..., None, :])
    rounding = 8.0 * EPS * (model.dim + 8)
    b = left.b
    try:
        W = root(correlation)
        is_clear = float(np.vecdot(W, W).sum()) * 4.0 * rounding <= 1.0  # smallest eigenvalue ≥ 4·rounding
    except np.linalg.LinAlgError:
        is_clear = False
    if not is_clear and held.n_obs > 0:
        values, vectors = np.linalg.eigh(correlation)
        if values.min() < -1e3 * rounding * max(1.0, math.sqrt(held.n_obs)):
            return None
        V = transposed(vectors)
        floors = lam * np.vecdot(V, V / scale[..., None, :] ** 2)  # λI along each direction
        hidden = values < 4.0 * rounding
        values = np.maximum(values, np.maximum(floors, EPS**2))
        seen = np.where(hidden, 0.0, times(V, b / scale.reshape(-1)).reshape(values.shape))
        b = scale.reshape(-1) * times(vectors, seen.reshape(-1))
        rows = V * np.sqrt(values)[..., None] * scale[..., None, :]
        left = SufficientStats(frozen(squared(rows)), b, left.n_obs, left.reward_sum, left.reward_sq_sum)
        W = V / np.sqrt(values)[..., None] / scale[..., None, :]
        log_det = float(np.log(values).sum()) + 2.0 * float(np.log(scale).sum())
    else:
        factor = factorise(left.Sigma)
        W, log_det = factor.W, factor.log_det
    theta = times(transposed(W), times(W, b))
    noise = 0.0
    if left.n_obs > 0:
        noise = max(left.reward_sq_sum - float(b @ theta), 0.0) / left.n_obs
    return Others(left.Sigma, frozen(b), frozen(theta), frozen(squared(W)), log_det, noise)


def prior_of(others: Others, kappa: float) -> PersonalPrior:
    """P = (Σ_o⁻¹ + κI)⁻¹ and Pθ_o."""
    if kappa == 0.0:
        return PersonalPrior(0.0, others.Sigma, others.b, others.log_det)
    factor = factorise(others.inverse + kappa * np.eye(others.inverse.shape[-1]))
    P = frozen(squared(factor.W))
    return PersonalPrior(kappa, P, frozen(times(P, others.theta)), -factor.log_det)


class PersonalEstimate:
    """θ̂ = Λ⁻¹(Pθ_o + c) with Λ⁻¹ and log det Λ, as they were at one moment. Immutable."""

    __slots__ = ("inverse", "log_det", "n_obs", "theta_hat")

    def __init__(self, inverse: Matrix, theta_hat: Vector, log_det: float, n_obs: int = 0) -> None:
        self.inverse, self.theta_hat, self.log_det = frozen(inverse), frozen(theta_hat), log_det
        self.n_obs = n_obs  # observations of the others and its own

    def predict(self, actions: Matrix) -> Vector:
        """⟨θ̂, x⟩ of each row."""
        return times_vector(actions, self.theta_hat)

    def widths(self, actions: Matrix) -> Vector:
        """‖x‖_{Λ⁻¹} of each row."""
        forms = np.vecdot(product(actions, self.inverse), actions)
        return np.asarray(np.sqrt(np.maximum(forms, 0.0)))

    def whitened(self, actions: Matrix) -> Matrix:
        """W x of each row with Wᵀ W = Λ⁻¹, W lower triangular, (k, d)."""
        upper = np.linalg.cholesky(self.inverse[::-1, ::-1])[::-1, ::-1]  # Λ⁻¹ = U Uᵀ, and W = Uᵀ
        return product(actions, np.asarray(upper, dtype=np.float64))

    def upper(self, actions: Matrix, beta: float) -> Vector:
        """⟨θ̂, x⟩ + β‖x‖_{Λ⁻¹} of each row."""
        return self.predict(actions) + beta * self.widths(actions)

    def contenders(self, actions: Matrix, beta: float) -> None:
        """None: pruning would cost more than it saves, because Λ changes with every own observation."""
        return


class BlockPersonalEstimate(BlockScores, PersonalEstimate):
    """The same by blocks: `inverse` is (K, p, p)."""

    __slots__ = ()

    def whitened(self, actions: Matrix) -> Matrix:
        """W x of each row, (k, d): zero outside the row's block."""
        places, values = split_rows(actions, len(self.inverse))
        upper = np.asarray(np.linalg.cholesky(self.inverse[:, ::-1, ::-1])[:, ::-1, ::-1], dtype=np.float64)
        Z = np.zeros((len(places), *self.inverse.shape[:2]))
        Z[np.arange(len(places)), places] = np.vecdot(transposed(upper)[places], values[:, None, :])
        return Z.reshape(len(places), -1)
