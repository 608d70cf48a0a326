"""A block of rounds as kernels read it, and the totals that they write."""

from __future__ import annotations

from typing import NamedTuple

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.jit import inner
from fedbandit.simulation.worlds import Index

FRESH, TABLE, BALL = 0, 1, 2  # K new actions each round; K rows of a table; one row for each agent, set from outside


class RoundBlock(NamedTuple):
    """Some rounds: active agents, decision sets, mean rewards and noise."""

    kind: int
    n_actions: int
    remembered: bool  # whether this is the table whose scores a lazy policy caches
    table: Matrix  # FRESH: (n·K, d); TABLE: (N, d); BALL: (M, d), the decision of each agent
    norms: Vector  # TABLE: (N,), the lengths of its rows
    rows: Index  # TABLE: (n, K)
    means: Matrix  # (n, K)
    noise: Matrix  # (n, 1), or (n, K) where it depends on the action
    active: Index  # (n,)
    decided: Vector  # BALL: (M,), the mean of each agent's decision
    best_mean: float  # BALL: max ⟨θ*, x⟩


class RoundLog(NamedTuple):
    """Running totals, and what they were after each round of the block."""

    sums: Vector  # regret, reward
    counts: Index  # messages up, messages down, switches, and where messages differ in size the numbers in them
    choices: Index  # (n,)
    sums_at: Matrix  # (n, 2)
    counts_at: Index  # (n, 4)


@inner
def best_of(means: Matrix, i: int) -> float:
    """The largest mean of round i."""
    best = means[i, 0]
    for k in range(1, means.shape[1]):
        best = max(best, means[i, k])
    return float(best)


@inner
def earn(means: Matrix, noise: Matrix, i: int, k: int, sums: Vector, choices: Index) -> float:
    """The reward of choice k in round i; regret, reward and choice join the totals."""
    mean = means[i, k]
    reward = mean + noise[i, k if noise.shape[1] > 1 else 0]
    sums[0] += best_of(means, i) - mean
    sums[1] += reward
    choices[i] = k
    return float(reward)


@inner
def book(sums: Vector, counts: Index, sums_at: Matrix, counts_at: Index, i: int) -> None:
    """Record the totals after round i."""
    for j in range(2):
        sums_at[i, j] = sums[j]
    for j in range(4):
        counts_at[i, j] = counts[j]
