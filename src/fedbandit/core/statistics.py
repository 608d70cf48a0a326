"""Sufficient statistics of ridge regression: additive, and the only data that agents send."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import (
    Matrix,
    Vector,
    as_float_array,
    as_matrix,
    as_vector,
    finite,
    finite_at_least,
    frozen,
    whole_at_least,
)
from fedbandit.core.products import gram, times_vector
from fedbandit.errors import DimensionMismatch

BLOCK = 32  # rows that are added together


@dataclass(frozen=True, slots=True, eq=False)
class SufficientStats:
    """Σ = Σ x xᵀ and b = Σ r x over some observations, with their number and the sums of r and r².

    Immutable; two of them add to the statistics of both data sets together.

    >>> one = SufficientStats.of([[1.0, 0.0]], [2.0])
    >>> (one + one).b, (one + one).n_obs
    (array([4., 0.]), 2)
    """

    Sigma: Matrix
    b: Vector
    n_obs: int = 0
    reward_sum: float = 0.0
    reward_sq_sum: float = 0.0

    @classmethod
    def zeros(cls, dim: int) -> SufficientStats:
        """The statistics of no data."""
        return cls(frozen(np.zeros((dim, dim))), frozen(np.zeros(dim)))

    @classmethod
    def prior(cls, *, dim: int, lam: float) -> SufficientStats:
        """Σ = λI, b = 0: where the server and every agent's model begin (Algorithm 1, line 1)."""
        size, ridge = whole_at_least(dim, 1, "dim"), finite_at_least(lam, 0.0, "lam")
        return cls(frozen(ridge * np.eye(size)), frozen(np.zeros(size)))

    @classmethod
    def of(cls, X: ArrayLike, y: ArrayLike) -> SufficientStats:
        """The statistics of rows `X` (n, d) with rewards `y` (n,)."""
        array = as_float_array(X, "observations")
        rows = finite(as_matrix(array, array.shape[-1] if array.ndim == 2 else 0, "observations"), "observations")
        rewards = as_vector(y, len(rows), "rewards")
        return cls(
            frozen(rows.T @ rows),
            frozen(rows.T @ rewards),
            len(rows),
            float(rewards.sum()),
            float(rewards @ rewards),
        )

    @property
    def dim(self) -> int:
        """Number of features d."""
        return len(self.b)

    def __add__(self, other: SufficientStats) -> SufficientStats:
        self._check(other)
        return SufficientStats(
            frozen(self.Sigma + other.Sigma),
            frozen(self.b + other.b),
            self.n_obs + other.n_obs,
            self.reward_sum + other.reward_sum,
            self.reward_sq_sum + other.reward_sq_sum,
        )

    def __sub__(self, other: SufficientStats) -> SufficientStats:
        self._check(other)
        return SufficientStats(
            frozen(self.Sigma - other.Sigma),
            frozen(self.b - other.b),
            self.n_obs - other.n_obs,
            self.reward_sum - other.reward_sum,
            self.reward_sq_sum - other.reward_sq_sum,
        )

    def __eq__(self, other: object) -> bool:
        """Equal to the last bit."""
        if not isinstance(other, SufficientStats):
            return NotImplemented
        return (
            self.n_obs == other.n_obs
            and self.reward_sum == other.reward_sum
            and self.reward_sq_sum == other.reward_sq_sum
            and np.array_equal(self.Sigma, other.Sigma)
            and np.array_equal(self.b, other.b)
        )

    def __hash__(self) -> int:
        return hash((self.n_obs, self.reward_sum, self.b.tobytes()))

    def _check(self, other: SufficientStats) -> None:
        if other.dim != self.dim:
            raise DimensionMismatch(f"expected statistics of {self.dim} features, got {other.dim}")


class RunningStats:
    """The mutable counterpart of `SufficientStats`: an agent's buffer, extended by one pair at a time.

    Pairs are stored as rows and added by one matrix product when there are enough of them or the sums are read: cheaper
    than a rank-one update each, and rounding errors grow more slowly. Every change takes effect by one assignment, so
    an exception that a signal handler raises in between leaves the buffer as it was before or as it is afterwards.
    """

    __slots__ = ("_added", "_n_rows", "_rewards", "_rows")

    def __init__(self, dim: int) -> None:
        self._added = (SufficientStats.zeros(dim), 0)  # the sums, and how many of the rows so far are in them
        self._rows: Matrix = np.empty((BLOCK, dim))
        self._rewards: Vector = np.empty(BLOCK)
        self._n_rows = 0  # observed one by one, ever

    @property
    def n_obs(self) -> int:
        """Number of observations."""
        sums, n_added = self._added
        return sums.n_obs + self._n_rows - n_added

    @property
    def Sigma(self) -> Matrix:
        """Σ x xᵀ so far, read-only."""
        return self.snapshot().Sigma

    @property
    def b(self) -> Vector:
        """Σ r x so far, read-only."""
        return self.snapshot().b

    def observe(self, x: Vector, reward: float) -> None:
        """Σ ← Σ + x xᵀ, b ← b + r x (Algorithm 1, line 7)."""
        n = self._n_rows - self._added[1]
        if n == BLOCK:  # an exception kept the last one from adding them
            self.snapshot()
            n = 0
        self._rows[n] = x
        self._rewards[n] = reward
        self._n_rows += 1
        if n == BLOCK - 1:
            self.snapshot()

    def add(self, stats: SufficientStats) -> None:
        """Add statistics that were summed elsewhere."""
        self._added = (self.snapshot() + stats, self._n_rows)

    def snapshot(self) -> SufficientStats:
        """An immutable copy."""
        sums, n_added = self._added
        n = self._n_rows - n_added
        if n:
            rows, rewards = self._rows[:n], self._rewards[:n]
            reward_sum, reward_sq_sum = sums.reward_sum, sums.reward_sq_sum
            for reward in rewards.tolist():
                reward_sum += reward
                reward_sq_sum += reward * reward
            Sigma, b = frozen(sums.Sigma + gram(rows)), frozen(sums.b + times_vector(rows.T, rewards))
            sums = SufficientStats(Sigma, b, sums.n_obs + n, reward_sum, reward_sq_sum)
            self._added = (sums, self._n_rows)
        return sums

    def clear(self) -> None:
        """Back to no data (Algorithm 1, line 11)."""
        self._added = (SufficientStats.zeros(self._rows.shape[1]), self._n_rows)


@lru_cache(maxsize=64)
def _upper(dim: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(dim)


def packed_length(dim: int) -> int:
    """Numbers in the upper triangle of a (d, d) matrix: d(d+1)/2."""
    return dim * (dim + 1) // 2


def pack_symmetric(Sigma: Matrix) -> Vector:
    """The upper triangle row by row, (d(d+1)/2,). Packed sums of matrices are sums of packed matrices."""
    return Sigma[_upper(len(Sigma))]


def unpack_symmetric(packed: Vector, dim: int) -> Matrix:
    """The symmetric (d, d) matrix of a packed upper triangle."""
    if packed.shape != (packed_length(dim),):
        raise DimensionMismatch(f"expected {packed_length(dim)} packed numbers, got shape {packed.shape}")
    Sigma = np.empty((dim, dim))
    rows, columns = _upper(dim)
    Sigma[rows, columns] = packed
    Sigma[columns, rows] = packed
    return Sigma
