"""How much an agent differs from the fleet, from its own observations: the choice of κ for `fb.personal.auto`.

The own rewards y have the mean Xθ_o and the covariance R²(C + κXXᵀ), C = I + XΣ_o⁻¹Xᵀ (core/personal_prior.py). In
sums, with e = c − Aθ_o: H = XᵀC⁻¹X = A − A(Σ_o + A)⁻¹A and g = XᵀC⁻¹(y − Xθ_o) = e − A(Σ_o + A)⁻¹e, so that

    log det(C + κXXᵀ) = log det C + log det(I + κH),
    (y − Xθ_o)ᵀ(C + κXXᵀ)⁻¹(y − Xθ_o) = r − κgᵀ(I + κH)⁻¹g,   r the same form for κ = 0.

H is made tridiagonal once, and each κ costs O(d) more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.block_packing import touched_blocks
from fedbandit.core.block_products import times
from fedbandit.core.personal_prior import Others
from fedbandit.core.products import gram, product, times_vector
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import SufficientStats
from fedbandit.pauses import pause_point

FIRST_CHOICE = 16  # own observations before κ is chosen for the first time; again at each doubling and download
KAPPAS = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0)
KAPPA_LOGS = tuple(math.log(kappa) for kappa in KAPPAS)
# Before the data, log κ is normal around `first_kappa` with a standard deviation of one decade. E‖δ_m‖² = κR²d, and
# the norm of parameters is bounded whatever d is: κ falls as 1/d. Measured: docs/how-to/agents-that-differ.md.
TYPICAL_SPREAD = 6.0  # E‖δ_m‖² in units of R²
LARGEST_FIRST = 1.0
NEGLIGIBLE = 1e-30  # of the trace: a column of H whose square might underflow
NOISE_FLOOR = 1e-9  # of the mean squared own reward: rewards that a model fits exactly


def first_kappa(dim: int) -> float:
    """κ before there are own observations to choose it from.

    >>> first_kappa(4), first_kappa(60)
    (1.0, 0.1)
    """
    return min(LARGEST_FIRST, TYPICAL_SPREAD / dim)


def choose_kappa(others: Others, own: SufficientStats) -> float:
    """The geometric mean of κ under its posterior law, given the own observations, on the grid `KAPPAS`.

    A mean instead of the most probable value: the evidence of few observations is flat, and its maximum jumps between
    the ends of the grid.
    """
    away = np.log10(np.array(KAPPAS) / first_kappa(len(own.b)))
    weights = log_evidence(others, own, np.array(KAPPAS)) - 0.5 * away**2
    weights = np.exp(weights - weights.max())
    return math.exp(float(weights @ KAPPA_LOGS) / float(weights.sum()))


def log_evidence(others: Others, own: SufficientStats, kappas: Vector) -> Vector:
    """log of the marginal likelihood of the own observations for each κ, up to a constant that they share.

    R² is integrated out under an inverse-gamma law at the fleet's own residual that weighs as much as the own
    observations: of a few of these a fit of d numbers leaves no residual, and where features explain one agent's
    rewards very well the small rest would make any difference between agents look large. Blocks add up, and those
    without own observations do not depend on κ.
    """
    theta = others.theta
    fitted = times(own.Sigma, theta)
    at_fleet = own.reward_sq_sum - 2.0 * float(own.b @ theta) + float(theta @ fitted)
    log_dets, residuals = np.zeros(len(kappas)), np.full(len(kappas), at_fleet)
    for Sigma, A, e in _parts(others, own, own.b - fitted):
        W = factorise(Sigma + A).W
        Y, z = product(W, A), times_vector(W, e)
        more, explained = forms_of(*tridiagonal(A - gram(Y), e - times_vector(Y.T, z)), kappas)
        log_dets += more
        residuals -= float(z @ z) + kappas * explained
    mean_square = own.reward_sq_sum / max(own.n_obs, 1)
    scale = max(others.noise if others.noise > 0.0 else mean_square, NOISE_FLOOR * mean_square + 1e-300)
    return np.asarray(-0.5 * log_dets - own.n_obs * np.log(own.n_obs * scale + np.maximum(residuals, 0.0)))


def _parts(others: Others, own: SufficientStats, e: Vector) -> Iterator[tuple[Matrix, Matrix, Vector]]:
    """Σ_o, A and e of each block that has own observations; of a dense model the whole."""
    if own.blocks == 1:
        yield others.Sigma, own.Sigma, e
        return
    for block in touched_blocks(own):
        yield others.Sigma[block], own.Sigma[block], e.reshape(own.blocks, -1)[block]


def tridiagonal(H: Matrix, g: Vector) -> tuple[Vector, Vector, Vector]:
    """The diagonal and what is beside it of QᵀHQ, and Qᵀg, with Q of Householder's reflections. H is overwritten."""
    dim = len(g)
    g, beside = g.copy(), np.zeros(max(dim - 1, 0))
    negligible = NEGLIGIBLE * float(np.abs(np.diagonal(H)).sum())  # rounding may leave a negative diagonal
    for k in range(dim - 2):
        v = H[k + 1 :, k].copy()
        size = math.sqrt(float(v @ v))
        if size <= negligible:
            continue
        beside[k] = -math.copysign(size, v[0])
        v[0] -= beside[k]
        v *= math.sqrt(2.0 / float(v @ v))  # the reflection is I − vvᵀ
        rest = H[k + 1 :, k + 1 :]
        p = times_vector(rest, v)
        p -= (0.5 * float(p @ v)) * v
        across = np.multiply.outer(v, p)
        rest -= across
        rest -= across.T
        g[k + 1 :] -= float(v @ g[k + 1 :]) * v
        pause_point()
    if dim > 1:
        beside[-1] = H[-1, -2]
    return np.diagonal(H).copy(), beside, g


def forms_of(diagonal: Vector, beside: Vector, g: Vector, kappas: Vector) -> tuple[Vector, Vector]:
    """log det(I + κT) and gᵀ(I + κT)⁻¹g of each κ for a tridiagonal T ⪰ 0, by LDLᵀ."""
    pivots = np.empty((len(g), len(kappas)))
    ys = np.empty((len(g), len(kappas)))
    for i in range(len(g)):
        pivots[i], ys[i] = 1.0 + kappas * diagonal[i], g[i]
        if i > 0:
            ratio = kappas * beside[i - 1] / pivots[i - 1]
            pivots[i] -= ratio * kappas * beside[i - 1]
            ys[i] -= ratio * ys[i - 1]
        np.maximum(pivots[i], 1.0, out=pivots[i])  # I + κT ⪰ I: less is rounding
    return np.log(pivots).sum(axis=0), (ys * ys / pivots).sum(axis=0)
