"""The base of worlds from data: rows belong to agents and are dealt once each before any is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds import Block, Index, Stream, block_size, generator
from fedbandit.simulation.worlds.decks import Decks

RIDGE = 1e-3  # of the best fixed policy: enough to make its equations solvable, too small to matter


@dataclass(slots=True)
class DataStream:
    """One seeded run over data: the owner of each row, the order of rows, and the decision sets."""

    decks: Decks
    offer: Callable[[Index], Block]
    theta_star: Vector | None = None  # unknown for real data

    def draw(self, active: Index) -> Block:
        """The next rounds."""
        return self.offer(self.decks.deal(active))


@dataclass(frozen=True, kw_only=True)
class DataWorld:
    """A world whose rounds are rows of data, with the reward of every arm known.

    `n_rows` rounds with `fb.participation.by_rows(world)` are one pass: each row once, at the agent that owns it.
    """

    name: ClassVar[str] = ""
    shuffled: ClassVar[bool] = True  # or the rows of an agent come in the order of the data

    @property
    def dim(self) -> int:
        """Number of features d."""
        raise NotImplementedError

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Number of rows of each agent."""
        raise NotImplementedError

    @property
    def n_arms(self) -> int:
        """Arms K in a decision set, the largest number if it varies."""
        raise NotImplementedError

    @property
    def row_numbers(self) -> int:
        """Numbers of one raw observation: what the features are made from, and the reward."""
        return self.dim + 1

    def owners(self, rng: np.random.Generator) -> Index:
        """The agent of each row, (n,); `rng` is for worlds whose agents are artificial."""
        raise NotImplementedError

    def offer(self, picked: Index, rng: np.random.Generator) -> Block:
        """Actions and rewards of some rows; `rng` is for worlds that draw the arms beside the known one."""
        raise NotImplementedError

    @property
    def n_rows(self) -> int:
        """Rows in the data: the rounds of one pass."""
        return sum(self.row_counts)

    @property
    def fleet_size(self) -> int:
        """Number of agents M."""
        return len(self.row_counts)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * self.n_arms)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        split, order, offers = (generator(part) for part in seed.spawn(3))
        decks = Decks(self.owners(split), order, shuffle=self.shuffled)
        return DataStream(decks, lambda picked: self.offer(picked, offers))

    # -- reference policies

    @cached_property
    def reference_rewards(self) -> ReferenceRewards:
        """Mean reward of three policies that need no learning, over one pass."""
        return reference_rewards(self)


@dataclass(frozen=True, slots=True)
class ReferenceRewards:
    """Mean rewards per round: a random arm, the best fixed linear policy in hindsight, and the best arm each time."""

    random: float
    best_fixed: float
    best: float


def reference_rewards(world: DataWorld) -> ReferenceRewards:
    """One pass over the data without learning.

    The best fixed policy is greedy for one θ of all agents, fitted by least squares to the reward of every arm of
    every row: the value of a common linear model in hindsight.
    """
    Sigma, b = RIDGE * np.eye(world.dim), np.zeros(world.dim)
    random = best = 0.0
    for X, means, once in _pass(world):
        rows, weights = X.reshape(-1, world.dim), once.ravel()
        Sigma += (rows * weights[:, None]).T @ rows
        b += rows.T @ (weights * means.ravel())
        random += float(((means * once).sum(axis=1) / once.sum(axis=1)).sum())
        best += float(means.max(axis=1).sum())
    theta = np.linalg.solve(Sigma, b)
    fixed = sum(float(means[np.arange(len(means)), (X @ theta).argmax(axis=1)].sum()) for X, means, _ in _pass(world))
    return ReferenceRewards(random / world.n_rows, fixed / world.n_rows, best / world.n_rows)


def _pass(world: DataWorld) -> Iterator[tuple[NDArray[np.float64], Matrix, Matrix]]:
    """Features (n, K, d), rewards (n, K), and weights by which an arm that fills up a short set counts once."""
    rng = generator(np.random.SeedSequence(0))
    for first in range(0, world.n_rows, world.block_rounds):
        picked = np.arange(first, min(first + world.block_rounds, world.n_rows))
        block = world.offer(picked, rng)
        if block.means is None:
            raise InvalidParameter("a world from data needs the reward of every arm")
        if block.table is not None and block.rows is not None:
            once = 1.0 / (block.rows[:, :, None] == block.rows[:, None, :]).sum(axis=2)
            yield block.table[block.rows], block.means, np.asarray(once)
        elif block.array is not None:
            yield block.array, block.means, np.ones(block.means.shape)


def random_split(n_rows: int, counts: tuple[int, ...], rng: np.random.Generator) -> Index:
    """Rows to agents at random, `counts` of them each."""
    return rng.permutation(np.repeat(np.arange(len(counts)), counts))[:n_rows]


def label_split(labels: Index, counts: tuple[int, ...], rng: np.random.Generator) -> Index:
    """Rows to agents so that most agents see about two labels only.

    Rows are sorted by label and cut into two pieces per agent; pieces are dealt at random.
    """
    by_label = rng.permutation(len(labels))
    by_label = by_label[np.argsort(labels[by_label], kind="stable")]
    pieces = np.array_split(by_label, 2 * len(counts))
    order = np.concatenate([pieces[i] for i in rng.permutation(len(pieces))])
    owners = np.empty(len(labels), dtype=np.int64)
    owners[order] = np.repeat(np.arange(len(counts)), counts)
    return owners


def even_counts(n_rows: int, n_agents: int) -> tuple[int, ...]:
    """As equal as possible.

    >>> even_counts(7, 3)
    (3, 2, 2)
    """
    if not 1 <= n_agents <= n_rows:
        raise InvalidParameter(f"expected n_agents from 1 to the {n_rows} rows there are, got {n_agents}")
    return tuple(n_rows // n_agents + (m < n_rows % n_agents) for m in range(n_agents))
