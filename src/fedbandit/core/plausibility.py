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
from fedbandit.core.block_packing import diagonal_places
from fedbandit.core.group_sums import GroupSums
from fedbandit.core.statistics import packed_length, unpack_symmetric
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


def require_plausible(
    packed: Vector,
    dim: int,
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    *,
    blocks: int = 1,
) -> None:
    """Raise `NotFinite` or `ImplausibleUpload` unless some data could have these sums.

    `packed` is [upper triangle of Σ row by row, b, n_obs, Σr, Σr²]. Rounding is allowed for so that sums of data, in
    whatever order they were added and whatever the scales of the features, are never refused.
    """
    n = packed_length(dim, blocks)
    if packed.shape != (n + dim + 3,):
        raise DimensionMismatch(f"expected {n + dim + 3} packed numbers for {dim} features, got shape {packed.shape}")
    # One pass: a NaN survives both, and an infinity is larger than any limit.
    top, bottom = float(packed.max()), float(packed.min())
    if not (top <= MAX_NUMBER and bottom >= -MAX_NUMBER):
        _refuse_magnitude(top, bottom)
    n_obs, reward_sum, reward_sq_sum = packed[n + dim :].tolist()
    _require_count(n_obs)
    _require_rewards(n_obs, reward_sum, reward_sq_sum, bounds.reward_bound)
    _require_actions(n_obs, packed[:n], packed[diagonal_places(dim, blocks)], bounds.action_bound)
    if blocks > 1:
        _require_semidefinite_blocks(packed, dim, blocks, n_obs)
    else:
        _require_semidefinite(packed, dim, n_obs)


def require_plausible_blocks(packed: Vector, p: int, n_touched: int, bounds: Bounds) -> None:
    """The same for the short form of sums in some blocks of p columns (`block_packing.touched_numbers`)."""
    if n_touched == 0:  # rows of zeros
        _require_numbers_alone(packed, bounds)
        return
    require_plausible(packed, p * n_touched, bounds, blocks=n_touched)
    if n_touched > packed[-3]:
        raise ImplausibleUpload(
            f"n_obs = {packed[-3]:g} observations, each in one block, cannot touch {n_touched} blocks"
        )


def _require_numbers_alone(totals: Vector, bounds: Bounds) -> None:
    top, bottom = float(totals.max()), float(totals.min())
    if not (top <= MAX_NUMBER and bottom >= -MAX_NUMBER):
        _refuse_magnitude(top, bottom)
    _require_count(float(totals[0]))
    n_obs, reward_sum, reward_sq_sum = totals.tolist()
    _require_rewards(n_obs, reward_sum, reward_sq_sum, bounds.reward_bound)


def require_plausible_groups(groups: GroupSums, packed: Vector) -> None:
    """Raise unless rewards by group can be rewards of these packed sums: some of them, each in one group."""
    n_obs, _, reward_sq_sum = packed[-3:].tolist()
    squares = 0.0
    for name, part in (("control", groups.control), ("treatment", groups.treatment)):
        if not all(abs(value) <= MAX_NUMBER for value in (part.reward_sum, part.reward_sq_sum)):  # also NaN
            raise ImplausibleUpload(f"expected finite sums of the {name} group up to {MAX_NUMBER:g} in magnitude")
        _require_rewards(float(part.n_obs), part.reward_sum, part.reward_sq_sum, None)
        squares += part.reward_sq_sum
    if groups.n_obs > n_obs:
        raise ImplausibleUpload(f"expected at most n_obs = {n_obs:g} rewards in both groups, got {groups.n_obs}")
    if squares > reward_sq_sum * (1 + _slack(n_obs)) + n_obs * TINY:
        raise ImplausibleUpload(f"expected Σr² ≤ {reward_sq_sum:g} in both groups together, got {squares:g}")


def information(packed: Vector, dim: int, lam: float, blocks: int = 1) -> float:
    """d log(1 + tr Σ / (λd)) ≥ log det(Σ_m + Σ) − log det Σ_m for every Σ_m ⪰ λI: the most an upload can have grown."""
    if dim == 0:
        return 0.0
    trace = max(float(packed[diagonal_places(dim, blocks)].sum()), 0.0)
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


def _require_actions(n_obs: float, triangle: Vector, diagonal: Vector, action_bound: float | None) -> None:
    """A diagonal ≥ 0, tr Σ ≤ n_obs·L², and rank Σ ≤ n_obs: few observations cannot span many directions."""
    if diagonal.min() < 0:
        raise ImplausibleUpload(f"expected a diagonal of Σ that is ≥ 0, got {float(diagonal.min()):g}")
    trace = float(diagonal.sum())
    if action_bound is not None and trace > n_obs * action_bound**2 * (1 + _slack(n_obs)) + n_obs * TINY:
        raise ImplausibleUpload(
            f"expected tr Σ ≤ n_obs·{action_bound:g}² = {n_obs * action_bound**2:g} by the model's action bound, "
            f"got {trace:g}"
        )
    if n_obs >= len(diagonal) or trace < math.sqrt(TINY):
        return
    # (tr Σ)² ≤ rank Σ · ‖Σ‖²_F
    scaled, spread = triangle / trace, diagonal / trace
    with np.errstate(over="ignore"):  # only where no data can give Σ: the factorisation that follows refuses it
        squares = 2.0 * float(scaled @ scaled) - float(spread @ spread)
    if n_obs * squares < 1 - 1e-6:
        raise ImplausibleUpload(f"n_obs = {n_obs:g} observations cannot give a Σ of rank above {n_obs:g}")


def _require_semidefinite(packed: Vector, dim: int, n_obs: float) -> None:
    """[[Σ, b], [bᵀ, Σr²]] ⪰ 0, with its diagonal lifted by what rounding can have done.

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
    try:
        np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        raise ImplausibleUpload(_why_indefinite(A)) from None


def _require_semidefinite_blocks(packed: Vector, dim: int, blocks: int, n_obs: float) -> None:
    """Every block of Σ ⪰ 0, and Σ_k b_kᵀΣ_k⁻¹b_k ≤ Σr²: the Cholesky factorisation of the whole, block by block."""
    n, size = packed_length(dim, blocks), dim // blocks
    Sigma = unpack_symmetric(packed[:n], dim, blocks)
    tolerance = 2.0 * (dim + 1) * (min(n_obs, 1 << 26) + dim + 9) * EPS
    at = np.arange(size)
    Sigma[:, at, at] = Sigma[:, at, at] * (1.0 + tolerance) + 4.0 * n_obs * TINY
    try:
        L = np.linalg.cholesky(Sigma)
    except np.linalg.LinAlgError:
        raise ImplausibleUpload("expected a positive semi-definite Σ, got one with a negative eigenvalue") from None
    with np.errstate(over="ignore", invalid="ignore"):
        b, z = packed[n : n + dim].reshape(blocks, size), np.empty((blocks, size))
        for i in range(size):  # L z = b in all blocks at once
            z[:, i] = (b[:, i] - np.vecdot(L[:, i, :i], z[:, :i])) / L[:, i, i]
        used = float((z * z).sum())
    if not used <= float(packed[-1]) * (1.0 + tolerance) + 4.0 * n_obs * TINY:
        raise ImplausibleUpload("expected b with bᵀΣ⁻¹b ≤ Σr², got one that no rewards of these actions can give")


def _why_indefinite(A: Matrix) -> str:
    try:
        np.linalg.cholesky(A[:-1, :-1])
    except np.linalg.LinAlgError:
        return "expected a positive semi-definite Σ, got one with a negative eigenvalue"
    return "expected b with bᵀΣ⁻¹b ≤ Σr², got one that no rewards of these actions can give"


def _slack(n_obs: float) -> float:
    return max(SLACK, 2.0 * n_obs * EPS)


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
