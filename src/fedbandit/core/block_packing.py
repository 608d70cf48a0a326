"""Packed statistics by blocks: where numbers stand, and the short form of sums that touch few blocks.

An upload says the sums of the blocks that its observations lie in; in all others the sums are zero. Leaving zeros out
says nothing that the sums themselves would not say.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Vector
from fedbandit.core.statistics import SufficientStats, pack_symmetric, packed_length


def n_touched_numbers(p: int, n_blocks: int) -> int:
    """Numbers in the short form of sums in so many blocks of p columns."""
    return n_blocks * (p * (p + 1) // 2 + p) + 3


def touched_blocks(stats: SufficientStats) -> NDArray[np.intp]:
    """Blocks in which Σ or b is not zero, ascending."""
    b = stats.b.reshape(stats.blocks, -1)
    return np.flatnonzero(np.diagonal(stats.Sigma, axis1=1, axis2=2).any(axis=1) | b.any(axis=1))


def touched_numbers(stats: SufficientStats) -> tuple[NDArray[np.intp], Vector]:
    """The touched blocks, and their triangles, their parts of b, n_obs, Σr and Σr²."""
    places = touched_blocks(stats)
    b = stats.b.reshape(stats.blocks, -1)[places].reshape(-1)
    totals = [float(stats.n_obs), stats.reward_sum, stats.reward_sq_sum]
    return places, np.concatenate([pack_symmetric(stats.Sigma[places]), b, totals])


def expanded(numbers: Vector, places: NDArray[np.intp], p: int, blocks: int) -> Vector:
    """The packed statistics of all blocks from the short form."""
    triangle, m = p * (p + 1) // 2, len(places)
    packed = np.zeros(blocks * (triangle + p) + 3)
    packed[: blocks * triangle].reshape(blocks, triangle)[places] = numbers[: m * triangle].reshape(m, triangle)
    b = packed[blocks * triangle : -3].reshape(blocks, p)
    b[places] = numbers[m * triangle : -3].reshape(m, p)
    packed[-3:] = numbers[-3:]
    return packed


def widened(packed: Vector, p: int, blocks: int, *, lam: float = 0.0) -> Vector:
    """Packed statistics with more blocks at the end, which have λ on the diagonal and nothing else."""
    triangle = p * (p + 1) // 2
    before = (len(packed) - 3) // (triangle + p)
    wider = np.zeros(blocks * (triangle + p) + 3)
    wider[diagonal_places(blocks * p, blocks)] = lam
    wider[: before * triangle] = packed[: before * triangle]
    wider[blocks * triangle : blocks * triangle + before * p] = packed[before * triangle : -3]
    wider[-3:] = packed[-3:]
    return wider


def with_columns(packed: Vector, dim: int, *, lam: float = 0.0) -> Vector:
    """Packed statistics of one block with more columns at the end, which have λ on the diagonal and nothing else."""
    before = packed_dim(len(packed))
    wider = np.zeros(packed_length(dim) + dim + 3)
    wider[diagonal_places(dim)] = lam
    at, to = 0, 0
    for row in range(before):  # of the triangle
        wider[to : to + before - row] = packed[at : at + before - row]
        at, to = at + before - row, to + dim - row
    wider[packed_length(dim) : packed_length(dim) + before] = packed[at:-3]
    wider[-3:] = packed[-3:]
    return wider


def leading_columns(packed: Vector, dim: int) -> Vector:
    """The first columns of packed statistics of one block: the inverse of `with_columns` without λ."""
    before = packed_dim(len(packed))
    rows = [packed[begin : begin + dim - row] for row, begin in enumerate(diagonal_places(before)[:dim].tolist())]
    b = packed_length(before)
    return np.concatenate([*rows, packed[b : b + dim], packed[-3:]])


def packed_dim(n_numbers: int) -> int:
    """Features of packed statistics of one block, from how many numbers they are: d(d+1)/2 + d + 3; 0: too few.

    >>> [packed_dim(packed_length(dim) + dim + 3) for dim in (1, 2, 50)], packed_dim(0)
    ([1, 2, 50], 0)
    """
    return (math.isqrt(8 * max(n_numbers - 3, 0) + 9) - 3) // 2


@lru_cache(maxsize=64)
def diagonal_places(dim: int, blocks: int = 1) -> NDArray[np.intp]:
    """Where the diagonal of Σ stands among the packed numbers."""
    p = dim // blocks
    rows = np.arange(p)
    one = rows * p - rows * (rows - 1) // 2
    return np.asarray((np.arange(blocks)[:, None] * packed_length(p) + one).reshape(-1))
