"""Optimal designs: how often to pull which action so that every mean is known well.

For weights π over rows x, V(π) = Σ π(x) x xᵀ. A G-optimal design minimises max ‖x‖²_{V(π)⁻¹}; by Kiefer and Wolfowitz
it maximises log det V(π) too, and the minimum is the rank of the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.errors import InvalidInput

NEAR = 2.0  # max ‖x‖² of a near-optimal design, in units of the rank
MOST_STEPS = 100_000  # of Frank and Wolfe: a bound that no input reaches, so that no loop is endless
SPREAD_RIDGE = 1e-6  # relative to the largest squared length


def g_optimal(X: Matrix, *, near: float = NEAR) -> Vector:
    """Weights π over the rows of X (k, d) with max ‖x‖²_{V(π)⁻¹} ≤ near · rank, by Frank and Wolfe's method.

    It starts at `rank` rows that span all others, and each step adds at most one row, so that few have weight.

    >>> g_optimal(np.array([[1.0, 0.0], [0.0, 1.0], [0.1, 0.1]]))
    array([0.5, 0.5, 0. ])
    """
    Z = _whitened(X)
    rank = Z.shape[1]
    start = _spanning_rows(Z)
    weights = np.zeros(len(Z))
    weights[start] = 1.0 / rank
    inverse = np.linalg.inv(Z[start].T @ Z[start] / rank)
    for _ in range(MOST_STEPS):
        squares = np.einsum("ij,jk,ik->i", Z, inverse, Z)
        k = int(np.argmax(squares))
        if squares[k] <= near * rank:
            break
        step = (squares[k] / rank - 1.0) / (squares[k] - 1.0)  # the best step towards row k: exact line search
        weights *= 1.0 - step
        weights[k] += step
        inverse = _stepped(inverse, Z[k], step)
    return np.asarray(weights / weights.sum())


def spread_rows(X: Matrix, n: int) -> NDArray[np.int64]:
    """The indices of n rows of X (k, d), each the one that those before it determine least; all rows if k ≤ n.

    >>> spread_rows(np.array([[1.0, 0.0], [0.9, 0.0], [0.0, 0.5]]), 2)
    array([0, 2])
    """
    if len(X) <= n:
        return np.arange(len(X))
    squares = np.einsum("ij,ij->i", X, X)
    inverse = np.eye(X.shape[1]) / (SPREAD_RIDGE * float(squares.max()) or 1.0)
    chosen: list[int] = []
    free = np.ones(len(X), dtype=bool)
    for _ in range(n):
        widths = np.einsum("ij,jk,ik->i", X, inverse, X)
        k = int(np.argmax(np.where(free, widths, -np.inf)))
        free[k] = False
        chosen.append(k)
        u = inverse @ X[k]
        inverse = inverse - np.outer(u, u) / (1.0 + float(X[k] @ u))
    return np.array(chosen, dtype=np.int64)


def multi_agent(E: NDArray[np.float64], active: NDArray[np.bool_], *, sweeps: int = 10, excess: float = 0.1) -> Matrix:
    """One distribution per agent over its active arms, (M, K), that maximises Σ_a log det Σ_i π_i(a) e eᵀ.

    `E` is (M, K, d), the direction e of each arm at each agent, and `active` (M, K). By block-coordinate ascent, one
    agent after another, until Σ_i max_a ‖e‖²_{V_a⁻¹} is within `excess` of its minimum, at most `sweeps` times.

    With G_a = ‖e‖²_{V_a⁻¹} the objective of one agent is Σ_a log(1 + (π'(a) − π(a)) G_a), whose maximum over the
    simplex is the projection of π(a) − 1/G_a onto it.
    """
    if E.ndim != 3 or active.shape != E.shape[:2] or not active.any(axis=1).all():
        raise InvalidInput(f"expected directions (M, K, d) and an active arm for each agent, got shape {E.shape}")
    weights = active / active.sum(axis=1, keepdims=True)
    V = np.einsum("ia,iaj,iak->ajk", weights, E, E)
    inverses = np.linalg.pinv(V, hermitian=True)
    least = int(np.linalg.matrix_rank(V, hermitian=True).sum())
    for _ in range(sweeps):
        for i in range(len(E)):
            arms = np.flatnonzero(active[i])
            weights[i, arms] = _reweighted(inverses, E[i, arms], arms, weights[i, arms])
        squares = np.einsum("iaj,ajk,iak->ia", E, inverses, E)
        if float(np.where(active, squares, 0.0).max(axis=1).sum()) <= least + excess:
            break
    return np.asarray(weights)


def _reweighted(inverses: NDArray[np.float64], e: Matrix, arms: NDArray[np.int64], weights: Vector) -> Vector:
    """The best weights of one agent when those of all others stay; brings the inverses up to date."""
    u = np.einsum("ajk,ak->aj", inverses[arms], e)
    squares = np.einsum("aj,aj->a", e, u)
    if (squares <= 0).any():
        return weights
    moved = project_to_simplex(weights - 1.0 / squares)
    change = moved - weights
    inverses[arms] -= (change / (1.0 + change * squares))[:, None, None] * u[:, :, None] * u[:, None, :]
    return moved


def project_to_simplex(z: Vector) -> Vector:
    """The probability vector nearest to z.

    >>> project_to_simplex(np.array([0.2, 0.4])), project_to_simplex(np.array([3.0, 0.0]))
    (array([0.4, 0.6]), array([1., 0.]))
    """
    descending = np.sort(z)[::-1]
    shifts = (1.0 - np.cumsum(descending)) / np.arange(1, len(z) + 1)
    shift = shifts[np.flatnonzero(descending + shifts > 0)[-1]]
    p = np.maximum(z + shift, 0.0)
    return np.asarray(p / p.sum())


def _whitened(X: Matrix) -> Matrix:
    """The rows in coordinates in which they span all dimensions: a design does not change under linear maps."""
    U, values, _ = np.linalg.svd(X, full_matrices=False)
    rank = int((values > values[0] * max(X.shape) * np.finfo(float).eps).sum()) if values[0] > 0 else 0
    if rank == 0:
        raise InvalidInput("expected actions for a design, got only zero vectors")
    return np.ascontiguousarray(U[:, :rank])


def _spanning_rows(Z: Matrix) -> list[int]:
    """As many rows as there are dimensions, each the one with the longest part outside the span of those before it."""
    rest, chosen = Z.copy(), []
    for _ in range(Z.shape[1]):
        k = int(np.argmax(np.einsum("ij,ij->i", rest, rest)))
        chosen.append(k)
        direction = rest[k] / np.linalg.norm(rest[k])
        rest -= np.outer(rest @ direction, direction)
        rest[chosen] = 0.0
    return chosen


def _stepped(inverse: Matrix, z: Vector, step: float) -> Matrix:
    """The inverse of (1 − step) V + step z zᵀ from that of V."""
    scaled = inverse / (1.0 - step)
    u = scaled @ z
    return np.asarray(scaled - np.outer(u, u) * (step / (1.0 + step * float(z @ u))))
