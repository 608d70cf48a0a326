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
from fedbandit.core.products import gram, inverse_root, product, times_vector
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import SufficientStats

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Others:
    """What the fleet knows besides an agent."""

    Sigma: Matrix  # Σ_o ⪰ λI
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
    scale = np.sqrt(np.diagonal(model.Sigma))
    correlation = left.Sigma / np.multiply.outer(scale, scale)
    rounding = 8.0 * EPS * (len(scale) + 8)
    b = left.b
    try:
        W, log_det = inverse_root(correlation)
        is_clear = float(np.vecdot(W, W).sum()) * 4.0 * rounding <= 1.0  # smallest eigenvalue ≥ 4·rounding
    except np.linalg.LinAlgError:
        is_clear = False
    if not is_clear and held.n_obs > 0:
        values, vectors = np.linalg.eigh(correlation)
        if values[0] < -1e3 * rounding * max(1.0, math.sqrt(held.n_obs)):
            return None
        floors = lam * np.vecdot(vectors.T, vectors.T / scale**2)  # λI along each direction
        hidden = values < 4.0 * rounding
        values = np.maximum(values, np.maximum(floors, EPS**2))
        W = vectors.T / np.sqrt(values)[:, None]
        log_det = float(np.log(values).sum())
        seen = vectors[:, ~hidden]
        b = scale * (seen @ (seen.T @ (b / scale)))
        rows = (vectors * np.sqrt(values)).T * scale
        left = SufficientStats(frozen(gram(rows)), b, left.n_obs, left.reward_sum, left.reward_sq_sum)
        W = W / scale
        log_det += 2.0 * float(np.log(scale).sum())
    else:
        factor = factorise(left.Sigma)
        W, log_det = factor.W, factor.log_det
    theta = times_vector(W.T, times_vector(W, b))
    noise = 0.0
    if left.n_obs > 0:
        noise = max(left.reward_sq_sum - float(b @ theta), 0.0) / left.n_obs
    return Others(left.Sigma, frozen(b), frozen(theta), frozen(gram(W)), log_det, noise)


def prior_of(others: Others, kappa: float) -> PersonalPrior:
    """P = (Σ_o⁻¹ + κI)⁻¹ and Pθ_o."""
    if kappa == 0.0:
        return PersonalPrior(0.0, others.Sigma, others.b, others.log_det)
    spread = others.inverse.copy()
    spread.flat[:: len(spread) + 1] += kappa
    factor = factorise(spread)
    P = frozen(gram(factor.W))
    return PersonalPrior(kappa, P, frozen(times_vector(P, others.theta)), -factor.log_det)


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
