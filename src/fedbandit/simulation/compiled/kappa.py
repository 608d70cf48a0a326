"""The choice of κ: the counterpart of core/kappa.py, which has the formulas."""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.kappa import KAPPA_LOGS, NEGLIGIBLE, NOISE_FLOOR
from fedbandit.simulation.compiled.jit import inner
from fedbandit.simulation.compiled.linear import added, factorise, lower_of, times_packed


@inner
def chosen_kappa(
    Sigma_o: Vector, theta: Vector, A: Vector, c: Vector, n_obs: int, squares: float, noise: float, first: float
) -> float:
    """`choose_kappa`; Σ_o and A are packed, `noise` is the mean squared residual of the others' fit."""
    dim = len(theta)
    g = np.empty(dim)
    times_packed(A, theta, g)
    at_fleet = squares
    for j in range(dim):
        at_fleet += theta[j] * g[j] - 2.0 * c[j] * theta[j]
        g[j] = c[j] - g[j]
    H = np.empty((dim, dim))
    left = at_fleet - reduce(Sigma_o, A, H, g)
    diagonal, beside = np.empty(dim), np.zeros(dim)
    tridiagonalise(H, g, diagonal, beside)
    scale = max(noise if noise > 0.0 else squares / n_obs, NOISE_FLOOR * squares / n_obs + 1e-300)
    evidence = np.empty(len(KAPPA_LOGS))
    for q in range(len(KAPPA_LOGS)):
        kappa = math.exp(KAPPA_LOGS[q])
        log_det, explained = forms_of(diagonal, beside, g, kappa)
        residual = max(left - kappa * explained, 0.0)
        evidence[q] = -0.5 * log_det - n_obs * math.log(n_obs * scale + residual)
        evidence[q] -= 0.5 * ((KAPPA_LOGS[q] - math.log(first)) / math.log(10.0)) ** 2
    return mean_kappa(evidence)


@inner
def mean_kappa(evidence: Vector) -> float:
    """The geometric mean of κ with these logarithms of weights."""
    largest = evidence.max()
    total = 0.0
    mean = 0.0
    for q in range(len(evidence)):
        weight = math.exp(evidence[q] - largest)
        total += weight
        mean += weight * KAPPA_LOGS[q]
    return math.exp(mean / total)


@inner
def reduce(Sigma_o: Vector, A: Vector, H: Matrix, g: Vector) -> float:
    """H ← A − A(Σ_o + A)⁻¹A and g ← e − A(Σ_o + A)⁻¹e, with e in g before; returns eᵀ(Σ_o + A)⁻¹e."""
    dim = len(g)
    W, Y = np.empty((dim, dim)), np.zeros((dim, dim))
    factorise(added(Sigma_o, A), W)
    lower = lower_of(A)
    for i in range(dim):
        for j in range(i + 1):
            H[i, j] = H[j, i] = lower[i, j]
    z = np.zeros(dim)
    for i in range(dim):
        for k in range(i + 1):
            z[i] += W[i, k] * g[k]
            for j in range(dim):
                Y[i, j] += W[i, k] * H[k, j]
    explained = 0.0
    for k in range(dim):
        explained += z[k] * z[k]
        for i in range(dim):
            g[i] -= Y[k, i] * z[k]
            for j in range(dim):
                H[i, j] -= Y[k, i] * Y[k, j]
    return explained


@inner
def tridiagonalise(H: Matrix, g: Vector, diagonal: Vector, beside: Vector) -> None:
    """The diagonal and what is beside it of QᵀHQ, and g ← Qᵀg, with Q of Householder's reflections."""
    dim = len(g)
    v, p = np.empty(dim), np.empty(dim)
    trace = 0.0
    for k in range(dim):
        trace += abs(H[k, k])
    for k in range(dim - 2):
        square = 0.0
        for i in range(k + 1, dim):
            v[i] = H[i, k]
            square += v[i] * v[i]
        if math.sqrt(square) > NEGLIGIBLE * trace:
            beside[k] = -math.copysign(math.sqrt(square), v[k + 1])
            v[k + 1] -= beside[k]
            reflect(H, g, v, p, k + 1)
    for k in range(dim):
        diagonal[k] = H[k, k]
    if dim > 1:
        beside[dim - 2] = H[dim - 1, dim - 2]


@inner
def reflect(H: Matrix, g: Vector, v: Vector, p: Vector, first: int) -> None:
    """From row and column `first` on: H ← RHR and g ← Rg, R the reflection along v. p is overwritten."""
    dim = len(g)
    square = 0.0
    along = 0.0
    for i in range(first, dim):
        square += v[i] * v[i]
        along += v[i] * g[i]
    turn = 2.0 / square
    inner_product = 0.0
    for i in range(first, dim):
        g[i] -= turn * along * v[i]
        s = 0.0
        for j in range(first, dim):
            s += H[i, j] * v[j]
        p[i] = turn * s
        inner_product += p[i] * v[i]
    for i in range(first, dim):
        p[i] -= 0.5 * turn * inner_product * v[i]
    for i in range(first, dim):
        for j in range(first, dim):
            H[i, j] -= v[i] * p[j] + p[i] * v[j]


@inner
def forms_of(diagonal: Vector, beside: Vector, g: Vector, kappa: float) -> tuple[float, float]:
    """log det(I + κT) and gᵀ(I + κT)⁻¹g for a tridiagonal T ⪰ 0, by LDLᵀ."""
    log_det, explained, pivot, y = 0.0, 0.0, 1.0, 0.0
    for i in range(len(g)):
        ratio = kappa * beside[i - 1] / pivot if i > 0 else 0.0
        cross = ratio * kappa * beside[i - 1] if i > 0 else 0.0
        pivot = max(1.0 + kappa * diagonal[i] - cross, 1.0)
        y = g[i] - ratio * y
        log_det += math.log(pivot)
        explained += y * y / pivot
    return log_det, explained
