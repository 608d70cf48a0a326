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
from fedbandit.core.block_rows import split_rows
from fedbandit.core.group_sums import NO_GROUPS
from fedbandit.core.products import gram, times_vector
from fedbandit.errors import DimensionMismatch

BLOCK = 32  # rows that are added together


@dataclass(frozen=True, slots=True, eq=False)
class SufficientStats:
    """Σ = Σ x xᵀ and b = Σ r x over some observations, with their number and the sums of r and r².

    Immutable; two of them add to the statistics of both data sets together. With K blocks (`core.block_rows`) Σ is
    (K, p, p), the blocks of a block-diagonal (d, d) matrix with d = K·p; b is (d,) in either case.

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
    def zeros(cls, dim: int, blocks: int = 1) -> SufficientStats:
        """The statistics of no data."""
        return cls(frozen(np.zeros(_shape(dim, blocks))), frozen(np.zeros(dim)))

    @classmethod
    def prior(cls, *, dim: int, lam: float, blocks: int = 1) -> SufficientStats:
        """Σ = λI, b = 0: where the server and every agent's model begin (Algorithm 1, line 1)."""
        size, ridge = whole_at_least(dim, 1, "dim"), finite_at_least(lam, 0.0, "lam")
        Sigma = np.zeros(_shape(size, blocks))
        Sigma[..., np.arange(Sigma.shape[-1]), np.arange(Sigma.shape[-1])] = ridge
        return cls(frozen(Sigma), frozen(np.zeros(size)))

    @classmethod
    def of(cls, X: ArrayLike, y: ArrayLike, *, blocks: int = 1) -> SufficientStats:
        """The statistics of rows `X` (n, d) with rewards `y` (n,); with `blocks`, each row lies in one of them."""
        array = as_float_array(X, "observations")
        rows = finite(as_matrix(array, array.shape[-1] if array.ndim == 2 else 0, "observations"), "observations")
        rewards = as_vector(y, len(rows), "rewards")
        if blocks > 1:
            return cls.of_blocks(*split_rows(rows, blocks), rewards, blocks)
        return cls(
            frozen(rows.T @ rows),
            frozen(rows.T @ rewards),
            len(rows),
            float(rewards.sum()),
            float(rewards @ rewards),
        )

    @classmethod
    def of_blocks(cls, places: NDArray[np.intp], values: Matrix, rewards: Vector, blocks: int) -> SufficientStats:
        """The statistics of rows with `values` (n, p) in block `places` (n,) and zeros elsewhere."""
        p = values.shape[1]
        if not len(places):
            return cls.zeros(blocks * p, blocks)
        Sigma, b = np.zeros((blocks, p, p)), np.zeros((blocks, p))
        order = np.argsort(places, kind="stable")
        found, begins = np.unique(places[order], return_index=True)
        for block, at in zip(found.tolist(), np.split(order, begins[1:]), strict=True):
            Sigma[block], b[block] = gram(values[at]), times_vector(values[at].T, rewards[at])
        return cls(frozen(Sigma), frozen(b.reshape(-1)), len(values), float(rewards.sum()), float(rewards @ rewards))

    @property
    def dim(self) -> int:
        """Number of features d."""
        return len(self.b)

    @property
    def blocks(self) -> int:
        """Number of blocks K; 1 where Σ is one matrix."""
        return 1 if self.Sigma.ndim == 2 else len(self.Sigma)

    @property
    def diagonal(self) -> Vector:
        """The diagonal of Σ, (d,)."""
        return np.diagonal(self.Sigma, axis1=-2, axis2=-1).reshape(-1)

    def form(self, v: Vector) -> float:
        """vᵀ Σ v."""
        parts = v.reshape(*self.Sigma.shape[:-2], -1)
        return float(np.vecdot((self.Sigma @ parts[..., None])[..., 0], parts).sum())

    def dense(self) -> SufficientStats:
        """The same with Σ as one (d, d) matrix."""
        if self.blocks == 1:
            return self
        Sigma, K, p = np.zeros((self.dim, self.dim)), self.blocks, self.Sigma.shape[-1]
        Sigma.reshape(K, p, K, p)[np.arange(K), :, np.arange(K), :] = self.Sigma
        return SufficientStats(frozen(Sigma), self.b, self.n_obs, self.reward_sum, self.reward_sq_sum)

    def widened(self, blocks: int, diagonal: float = 0.0) -> SufficientStats:
        """The same with more blocks at the end, without data: zeros, and `diagonal` (λ) on the diagonal of Σ."""
        p = self.Sigma.shape[-1]
        Sigma = np.zeros((blocks, p, p))
        Sigma[:, np.arange(p), np.arange(p)] = diagonal
        Sigma[: self.blocks] = self.Sigma
        b = np.zeros(blocks * p)
        b[: self.dim] = self.b
        return SufficientStats(frozen(Sigma), frozen(b), self.n_obs, self.reward_sum, self.reward_sq_sum)

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
        if other.dim != self.dim or other.blocks != self.blocks:
            raise DimensionMismatch(
                f"expected statistics of {self.dim} features"
                + (
                    f" in {self.blocks} blocks, got {other.dim} in {other.blocks}"
                    if self.blocks != other.blocks
                    else f", got {other.dim}"
                )
            )


class RunningStats:
    """The mutable counterpart of `SufficientStats`: an agent's buffer, extended by one pair at a time.

    Pairs are stored as rows and added by one matrix product when there are enough of them or the sums are read: cheaper
    than a rank-one update each, and rounding errors grow more slowly. Every change takes effect by one assignment, so
    an exception that a signal handler raises in between leaves the buffer as it was before or as it is afterwards.
    """

    __slots__ = ("_added", "_n_rows", "_rewards", "_rows", "groups")

    def __init__(self, dim: int) -> None:
        self._added = (SufficientStats.zeros(dim), 0)  # the sums, and how many of the rows so far are in them
        self._rows: Matrix = np.empty((BLOCK, dim))
        self._rewards: Vector = np.empty(BLOCK)
        self._n_rows = 0  # observed one by one, ever
        self.groups = NO_GROUPS  # rewards of control and treatment decisions, where there is a control group

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
        self.groups = NO_GROUPS
        self._added = (SufficientStats.zeros(self._rows.shape[1]), self._n_rows)


@lru_cache(maxsize=64)
def _upper(dim: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(dim)


def packed_length(dim: int, blocks: int = 1) -> int:
    """Numbers in the upper triangle of a (d, d) matrix, d(d+1)/2, or in those of its K blocks, K·p(p+1)/2."""
    p = dim // blocks
    return blocks * (p * (p + 1) // 2)


def pack_symmetric(Sigma: Matrix) -> Vector:
    """The upper triangle row by row, (d(d+1)/2,), block after block. Packed sums are sums of packed matrices."""
    rows, columns = _upper(Sigma.shape[-1])
    return Sigma[..., rows, columns].reshape(-1)


def unpack_symmetric(packed: Vector, dim: int, blocks: int = 1) -> Matrix:
    """The symmetric (d, d) matrix of a packed upper triangle, or the (K, p, p) blocks of K of them."""
    if packed.shape != (packed_length(dim, blocks),):
        raise DimensionMismatch(f"expected {packed_length(dim, blocks)} packed numbers, got shape {packed.shape}")
    Sigma = np.empty(_shape(dim, blocks))
    rows, columns = _upper(Sigma.shape[-1])
    Sigma[..., rows, columns] = Sigma[..., columns, rows] = packed.reshape(*Sigma.shape[:-2], -1)
    return Sigma


def _shape(dim: int, blocks: int) -> tuple[int, ...]:
    return (dim, dim) if blocks == 1 else (blocks, dim // blocks, dim // blocks)
