"""Sufficient statistics of ridge regression: all that ever travels, and they add."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import Matrix, Vector, as_matrix, as_vector, finite, frozen
from fedbandit.errors import DimensionMismatch


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
        return cls(frozen(lam * np.eye(dim)), frozen(np.zeros(dim)))

    @classmethod
    def of(cls, X: ArrayLike, y: ArrayLike) -> SufficientStats:
        """The statistics of rows `X` (n, d) with rewards `y` (n,)."""
        width = np.shape(X)[-1] if np.ndim(X) == 2 else 0
        rows = finite(as_matrix(X, width, "observations"), "observations")
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
    """The mutable twin of `SufficientStats`: an agent's buffer, grown by one pair at a time.

    Pairs wait as rows and are added by one matrix product when there are enough of them or somebody looks: cheaper
    than a rank-one update each, and rounding builds up more slowly.
    """

    __slots__ = ("_Sigma", "_b", "_n_waiting", "_rewards", "_rows", "n_obs", "reward_sq_sum", "reward_sum")

    def __init__(self, dim: int) -> None:
        self._Sigma: Matrix = np.zeros((dim, dim))
        self._b: Vector = np.zeros(dim)
        self._rows: Matrix = np.empty((32, dim))
        self._rewards: Vector = np.empty(32)
        self._n_waiting = 0
        self.n_obs = 0
        self.reward_sum = 0.0
        self.reward_sq_sum = 0.0

    @property
    def Sigma(self) -> Matrix:
        """Σ x xᵀ so far; a view that later observations change."""
        if self._n_waiting:
            self._fold()
        return self._Sigma

    @property
    def b(self) -> Vector:
        """Σ r x so far; a view that later observations change."""
        if self._n_waiting:
            self._fold()
        return self._b

    def observe(self, x: Vector, reward: float) -> None:
        """Σ ← Σ + x xᵀ, b ← b + r x (Algorithm 1, line 7)."""
        n = self._n_waiting
        self._rows[n] = x
        self._rewards[n] = reward
        self._n_waiting = n + 1
        self.n_obs += 1
        self.reward_sum += reward
        self.reward_sq_sum += reward * reward
        if n == 31:
            self._fold()

    def _fold(self) -> None:
        rows = self._rows[: self._n_waiting]
        self._Sigma += rows.T @ rows
        self._b += self._rewards[: self._n_waiting] @ rows
        self._n_waiting = 0

    def add(self, stats: SufficientStats) -> None:
        """Take in statistics that were summed elsewhere."""
        if stats.dim != len(self.b):
            raise DimensionMismatch(f"expected statistics of {len(self.b)} features, got {stats.dim}")
        self.Sigma[:] += stats.Sigma
        self.b[:] += stats.b
        self.n_obs += stats.n_obs
        self.reward_sum += stats.reward_sum
        self.reward_sq_sum += stats.reward_sq_sum

    def snapshot(self) -> SufficientStats:
        """An immutable copy."""
        return SufficientStats(
            frozen(self.Sigma.copy()), frozen(self.b.copy()), self.n_obs, self.reward_sum, self.reward_sq_sum
        )

    def clear(self) -> None:
        """Back to no data (Algorithm 1, line 11)."""
        self._n_waiting = 0
        self._Sigma[:] = 0.0
        self._b[:] = 0.0
        self.n_obs = 0
        self.reward_sum = 0.0
        self.reward_sq_sum = 0.0


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
