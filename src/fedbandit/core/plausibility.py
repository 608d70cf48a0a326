"""Plausibility of uploads: whether any data could have the sums that a client sent, checked before a merge.

For rows x with rewards r the matrix [[Σ, b], [bᵀ, Σr²]] is Σ (x, r)(x, r)ᵀ, hence positive semi-definite. One Cholesky
factorisation of it therefore tests Σ ⪰ 0 and bᵀ(Σ + λI)⁻¹b ≤ bᵀΣ⁺b ≤ Σr² together, for every λ ≥ 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.statistics import packed_length
from fedbandit.errors import DimensionMismatch, ImplausibleUpload, NotFinite

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)  # below it products lose digits to underflow
MAX_N_OBS = 1 << 32  # in one upload
MAX_TOTAL = 1 << 53  # in one model: beyond it a float64 cannot count
MAX_NUMBER = 1e150  # a square still fits, and so does the sum of all uploads that can ever come
SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that a model sets on its data: ‖x‖ ≤ L and |r| ≤ reward_bound, each optional."""

    action_bound: float | None = None
    reward_bound: float | None = None


def require_plausible(packed: Vector, dim: int, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
    """Raise `NotFinite` or `ImplausibleUpload` unless some data could have these sums.

    `packed` is [upper triangle of Σ row by row, b, n_obs, Σr, Σr²]. Rounding is allowed for so that sums of data, in
    whatever order they were added and whatever the scales of the features, are never refused.
    """
    n = packed_length(dim)
    if packed.shape != (n + dim + 3,):
        raise DimensionMismatch(f"expected {n + dim + 3} packed numbers for {dim} features, got shape {packed.shape}")
    # One pass: a NaN survives both, and an infinity is larger than any limit.
    top, bottom = float(packed.max()), float(packed.min())
    if not (top <= MAX_NUMBER and bottom >= -MAX_NUMBER):
        _refuse_magnitude(top, bottom)
    n_obs, reward_sum, reward_sq_sum = packed[n + dim :].tolist()
    _require_count(n_obs)
    _require_rewards(n_obs, reward_sum, reward_sq_sum, bounds.reward_bound)
    diagonal = packed[_diagonal(dim)]
    _require_actions(n_obs, diagonal, bounds.action_bound)
    if n_obs < dim:
        _require_rank(n_obs, packed[:n], diagonal)
    _require_semidefinite(packed, dim, n_obs)


def information(packed: Vector, dim: int, lam: float) -> float:
    """d log(1 + tr Σ / (λd)) ≥ log det(Σ_m + Σ) − log det Σ_m for every Σ_m ⪰ λI: the most an upload can have grown."""
    trace = max(float(packed[_diagonal(dim)].sum()), 0.0)
    return dim * math.log1p(trace / (lam * dim))


def _refuse_magnitude(top: float, bottom: float) -> None:
    if not (math.isfinite(top) and math.isfinite(bottom)):
        raise NotFinite("expected finite statistics, got NaN or infinity")
    raise ImplausibleUpload(f"expected numbers of magnitude up to {MAX_NUMBER:g}, got {max(top, -bottom):g}")


def _require_count(n_obs: float) -> None:
    if not (1 <= n_obs <= MAX_N_OBS and n_obs == math.floor(n_obs)):
        raise ImplausibleUpload(f"expected a whole n_obs from 1 to {MAX_N_OBS}, got {n_obs:g}")


def _require_rewards(n_obs: float, reward_sum: float, reward_sq_sum: float, reward_bound: float | None) -> None:
    slack = _slack(n_obs)
    if reward_sq_sum < 0:
        raise ImplausibleUpload(f"expected Σr² ≥ 0, got {reward_sq_sum:g}")
    # (Σr)² ≤ n Σr², as roots: the square of a sum may underflow where the sum does not.
    most = math.sqrt(n_obs) * math.sqrt(reward_sq_sum + n_obs * TINY)
    if abs(reward_sum) > most * (1 + slack):
        raise ImplausibleUpload(f"expected |Σr| ≤ √(n_obs·Σr²) = {most:g}, got Σr = {reward_sum:g}")
    if reward_bound is not None and reward_sq_sum > n_obs * reward_bound**2 * (1 + slack) + n_obs * TINY:
        raise ImplausibleUpload(
            f"expected Σr² ≤ n_obs·{reward_bound:g}² = {n_obs * reward_bound**2:g} by the model's reward bound, "
            f"got {reward_sq_sum:g}"
        )


def _require_actions(n_obs: float, diagonal: Vector, action_bound: float | None) -> None:
    if diagonal.min() < 0:
        raise ImplausibleUpload(f"expected a diagonal of Σ that is ≥ 0, got {float(diagonal.min()):g}")
    if action_bound is None:
        return
    trace = float(diagonal.sum())
    if trace > n_obs * action_bound**2 * (1 + _slack(n_obs)) + n_obs * TINY:
        raise ImplausibleUpload(
            f"expected tr Σ ≤ n_obs·{action_bound:g}² = {n_obs * action_bound**2:g} by the model's action bound, "
            f"got {trace:g}"
        )


def _require_rank(n_obs: float, triangle: Vector, diagonal: Vector) -> None:
    """rank Σ ≤ n_obs, by (tr Σ)² ≤ rank Σ · ‖Σ‖²_F: few observations cannot span many directions."""
    trace = float(diagonal.sum())
    if trace < math.sqrt(TINY):
        return
    scaled, spread = triangle / trace, diagonal / trace
    with np.errstate(over="ignore"):  # only where no data can give Σ: the factorisation that follows refuses it
        squares = 2.0 * float(scaled @ scaled) - float(spread @ spread)
    if n_obs * squares < 1 - 1e-6:
        raise ImplausibleUpload(f"n_obs = {n_obs:g} observations cannot give a Σ of rank above {n_obs:g}")


def _require_semidefinite(packed: Vector, dim: int, n_obs: float) -> None:
    A = _augmented(packed, dim, n_obs)
    try:
        np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        raise ImplausibleUpload(_why_indefinite(A)) from None


def _augmented(packed: Vector, dim: int, n_obs: float) -> Matrix:
    """[[Σ, b], [bᵀ, Σr²]] with its diagonal lifted by what rounding can have done.

    Adding n products errs by at most n·ε·√(A_ii A_jj) in entry (i, j), plus n halves of the smallest number where
    products underflow; as a matrix that is below (d+1)·n·ε times the diagonal. Cholesky, which is indifferent to the
    scales of rows, needs (d+1)(d+2)·ε more. The count is capped: errors of real sums grow like √n long before.
    """
    size = dim + 1
    A: Matrix = packed.take(_places(dim))
    tolerance = 2.0 * size * (min(n_obs, 1 << 26) + size + 8) * EPS
    diagonal = A.reshape(-1)[:: size + 1]
    diagonal *= 1.0 + tolerance
    diagonal += 4.0 * n_obs * TINY
    return A


def _why_indefinite(A: Matrix) -> str:
    try:
        np.linalg.cholesky(A[:-1, :-1])
    except np.linalg.LinAlgError:
        return "expected a positive semi-definite Σ, got one with a negative eigenvalue"
    return "expected b with bᵀΣ⁻¹b ≤ Σr², got one that no rewards of these actions can give"


def _slack(n_obs: float) -> float:
    return max(SLACK, 2.0 * n_obs * EPS)


@lru_cache(maxsize=64)
def _diagonal(dim: int) -> NDArray[np.intp]:
    """Where the diagonal of Σ is in the packed triangle."""
    rows = np.arange(dim)
    return rows * dim - rows * (rows - 1) // 2


@lru_cache(maxsize=8)  # as large as the matrix itself
def _places(dim: int) -> NDArray[np.intp]:
    """Where each entry of the (d+1)×(d+1) matrix stands among the packed numbers."""
    places = np.empty((dim + 1, dim + 1), dtype=np.intp)
    rows, columns = np.triu_indices(dim)
    n = len(rows)
    places[rows, columns] = places[columns, rows] = np.arange(n)
    places[dim, :dim] = places[:dim, dim] = np.arange(n, n + dim)
    places[dim, dim] = n + dim + 2
    return places
