"""The factor of a Σ whose ridge is lost to rounding: eigenvalues lifted to the rounding level, as in core/ridge.py."""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.arrays import Matrix
from fedbandit.simulation.compiled.jit import inner

EPS = float(np.finfo(float).eps)
MAX_SWEEPS = 30


@inner
def floored_factor(C: Matrix, W: Matrix) -> float:
    """W lower triangular with WᵀW the inverse of C lifted; returns its log det. C, a lower triangle, is overwritten."""
    dim = C.shape[0]
    for i in range(dim):
        for j in range(i):
            C[j, i] = C[i, j]
    V = np.eye(dim)
    diagonalise(C, V)
    log_det = 0.0
    for k in range(dim):
        value = max(C[k, k], dim * EPS)
        log_det += math.log(value)
        for i in range(dim):
            V[i, k] /= math.sqrt(value)
    lower_root(V, W)
    return log_det


@inner
def diagonalise(A: Matrix, V: Matrix) -> None:
    """Jacobi's rotations: A becomes diagonal, V collects its eigenvectors as columns."""
    dim = A.shape[0]
    for _ in range(MAX_SWEEPS):
        off = 0.0
        for i in range(dim):
            for j in range(i):
                off += A[i, j] * A[i, j]
        if off <= (EPS * dim) ** 2 * 1e-4:
            return
        for p in range(dim):
            for q in range(p + 1, dim):
                if A[p, q] != 0.0:
                    rotate(A, V, p, q)


@inner
def rotate(A: Matrix, V: Matrix, p: int, q: int) -> None:
    """Turn the plane (p, q) so that A_pq becomes 0."""
    tau = (A[q, q] - A[p, p]) / (2.0 * A[p, q])
    t = math.copysign(1.0, tau) / (abs(tau) + math.sqrt(1.0 + tau * tau))
    c = 1.0 / math.sqrt(1.0 + t * t)
    s = t * c
    for k in range(A.shape[0]):
        a, b = A[k, p], A[k, q]
        A[k, p], A[k, q] = c * a - s * b, s * a + c * b
    for k in range(A.shape[0]):
        a, b = A[p, k], A[q, k]
        A[p, k], A[q, k] = c * a - s * b, s * a + c * b
        a, b = V[k, p], V[k, q]
        V[k, p], V[k, q] = c * a - s * b, s * a + c * b


@inner
def lower_root(V: Matrix, W: Matrix) -> None:
    """W lower triangular with WᵀW = VVᵀ: Gram and Schmidt over the rows of V, the last one first."""
    dim = V.shape[0]
    for i in range(dim - 1, -1, -1):
        square = 0.0
        for k in range(dim):
            square += V[i, k] * V[i, k]
            W[i, k] = 0.0
        length = math.sqrt(square)
        W[i, i] = length
        for j in range(i):
            s = 0.0
            for k in range(dim):
                s += V[i, k] * V[j, k]
            W[i, j] = s / length
            for k in range(dim):
                V[j, k] -= s / square * V[i, k]
