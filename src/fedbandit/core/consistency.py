"""Tests of the numbers that a radius was given against the data, valid for adaptively chosen actions.

Each reports "contradicted" with a small probability when the declared numbers are right; none can confirm them.
"""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.ridge import RidgeModel

LEVEL = 1e-6  # probability that right numbers are called contradicted, per test


def least_noise_scale(ridge: RidgeModel, *, lam: float, theta_bound: float, level: float = LEVEL) -> float:
    """The smallest R that the data allow: R² ≥ (J − λS²)/(n + 2√(nt) + 2t), with J = Σr² − bᵀθ̂ and t = log(1/level).

    J is the least value of Σ(r − xᵀθ)² + λ‖θ‖², so J ≤ Σε² + λS² where ε is the noise. R-sub-Gaussian noise has E
    exp(sε²) ≤ (1 − 2sR²)^(−1/2) given the past, as a Gaussian has, so Σε² has the upper tail of R²χ²_n however the
    actions depend on the past.

    >>> from fedbandit.core.statistics import SufficientStats
    >>> stats = SufficientStats.prior(dim=1, lam=1.0) + SufficientStats.of([[1.0]] * 1000, [1.0, -1.0] * 500)
    >>> round(least_noise_scale(RidgeModel(stats), lam=1.0, theta_bound=1.0), 2)
    0.89
    """
    stats = ridge.stats
    n, t = float(stats.n_obs), math.log(1.0 / level)
    if n == 0:
        return 0.0
    misfit = stats.reward_sq_sum - float(stats.b @ ridge.theta_hat)
    return math.sqrt(max(misfit - lam * theta_bound**2, 0.0) / (n + 2.0 * math.sqrt(n * t) + 2.0 * t))


def distance_to_ball(ridge: RidgeModel, radius: float) -> float:
    """The least ‖θ̂ − θ‖_Σ over ‖θ‖ ≤ radius; 0 when θ̂ is within it.

    A confidence ellipsoid of radius β around θ̂ contradicts ‖θ*‖ ≤ S when this distance to the ball of radius S
    exceeds β. The minimiser is (Σ + μI)⁻¹Σθ̂ for the μ ≥ 0 that brings its norm to the radius.
    """
    values, vectors = np.linalg.eigh(ridge.stats.Sigma)  # of each block, where Σ has blocks
    theta = ridge.theta_hat.reshape(*values.shape, 1)
    values, along = np.maximum(values, 0.0).reshape(-1), (vectors.swapaxes(-1, -2) @ theta).reshape(-1)
    if float(along @ along) <= radius**2:
        return 0.0
    low, high = 0.0, float(values.max()) * float(np.linalg.norm(along)) / radius
    for _ in range(200):
        middle = 0.5 * (low + high)
        shrunk = along * values / (values + middle)
        low, high = (middle, high) if float(shrunk @ shrunk) > radius**2 else (low, middle)
    gap = along * high / (values + high)
    return math.sqrt(float(values @ gap**2))
