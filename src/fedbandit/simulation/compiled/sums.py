"""Sufficient statistics of many owners at once: the kernels' counterpart of core/statistics.py."""

from __future__ import annotations

from typing import NamedTuple

from fedbandit.core.arrays import Matrix
from fedbandit.simulation.compiled.jit import exact_inner
from fedbandit.simulation.worlds import Index


class Sums(NamedTuple):
    """Σ, b and n of several owners: agents' buffers, or servers."""

    Sigma: Matrix  # (owners, d(d+1)/2), packed as in linear.py
    b: Matrix  # (owners, d)
    n: Index  # (owners,)


@exact_inner
def add_pair(Sigma: Matrix, b: Matrix, n: Index, m: int, table: Matrix, r: int, reward: float) -> None:
    """Σ ← Σ + x xᵀ, b ← b + r x of owner m, with x row r of the table (Algorithm 1, line 7)."""
    at = 0
    for i in range(table.shape[1]):
        xi = table[r, i]
        for j in range(i + 1):
            Sigma[m, at + j] += xi * table[r, j]
        b[m, i] += reward * xi
        at += i + 1
    n[m] += 1


@exact_inner
def move(source: Sums, m: int, target: Sums, s: int) -> None:
    """Move the sums of owner m of `source` to owner s of `target` (Algorithm 1, lines 10 and 11)."""
    for j in range(source.Sigma.shape[1]):
        target.Sigma[s, j] += source.Sigma[m, j]
        source.Sigma[m, j] = 0.0
    for j in range(source.b.shape[1]):
        target.b[s, j] += source.b[m, j]
        source.b[m, j] = 0.0
    target.n[s] += source.n[m]
    source.n[m] = 0
