"""Worlds whose decision sets never change: one for everybody, or one per agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, keep_finite
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.base import (
    Block,
    DrawnStream,
    Index,
    Stream,
    block_size,
    check_numbers,
    generator,
    unit_rows,
)


@dataclass(slots=True)
class FixedStream(DrawnStream):
    """A stream in which every round offers the same actions, which everybody knows in advance."""

    fixed_actions: Matrix = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class FixedSet:
    """One fixed set of K vectors, uniform in the unit ball, offered in every round; θ* a random unit vector."""

    name: ClassVar[str] = "fixed-set"
    dim: int = 20
    n_actions: int = 120
    noise: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def block_rounds(self) -> int:
        return 4096  # only noise is drawn

    def stream(self, seed: np.random.SeedSequence) -> FixedStream:
        """One seeded run."""
        truth, actions, noise = seed.spawn(3)
        theta_star = unit_rows(generator(truth).standard_normal(self.dim))
        table = ball_rows(generator(actions), self.n_actions, self.dim)
        means = table @ theta_star

        def make(_: np.random.Generator, active: Index) -> Block:
            shape = (len(active), self.n_actions)
            rows = np.broadcast_to(np.arange(self.n_actions), shape)
            return Block(np.empty(0), np.broadcast_to(means, shape), table=table, rows=rows)

        return FixedStream(theta_star, generator(actions), generator(noise), self.noise, make, fixed_actions=table)


@dataclass(frozen=True, kw_only=True)
class FixedFeatures:
    """Huang et al.'s world: agent i has one fixed feature x_{i,a} for each arm a, with its mean ⟨θ_a, x_{i,a}⟩.

    Features have random directions and lengths uniform in [`shortest`, 1]; each θ_a is a random unit vector. With
    `shared` there is one θ for all arms: agents with fixed decision sets of their own. An agent's features depend on
    the seed and on its number only.
    """

    name: ClassVar[str] = "fixed-features"
    dim: int = 3
    n_actions: int = 10
    noise: float = 1.0
    shortest: float = 0.5
    shared: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        keep_finite(self, "shortest", 0.0, strictly=True)
        if not self.shortest <= 1:
            raise InvalidParameter(f"expected shortest in (0, 1], got {self.shortest}")
        if not isinstance(self.shared, bool):
            raise InvalidParameter(f"expected shared as True or False, got {self.shared!r}")

    @property
    def block_rounds(self) -> int:
        return block_size(self.n_actions)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, features, noise = seed.spawn(3)
        thetas = unit_rows(generator(truth).standard_normal((1 if self.shared else self.n_actions, self.dim)))
        known = _Features(self, features, thetas)

        def make(_: np.random.Generator, active: Index) -> Block:
            table, means = known.up_to(int(active.max()))
            rows = active[:, None] * self.n_actions + np.arange(self.n_actions)
            return Block(np.empty(0), means[active], table=table, rows=rows)

        return DrawnStream(thetas[0] if self.shared else None, generator(features), generator(noise), self.noise, make)


class _Features:
    """The features of agents 0, 1, … and their means, drawn when an agent is first active."""

    def __init__(self, world: FixedFeatures, seed: np.random.SeedSequence, thetas: Matrix) -> None:
        self.world, self.seed, self.thetas = world, seed, thetas
        self.table: Matrix = np.empty((0, world.dim))
        self.means: Matrix = np.empty((0, world.n_actions))

    def up_to(self, agent: int) -> tuple[Matrix, Matrix]:
        """Features (n·K, d) and means (n, K) of agents 0 … n − 1, with n > agent."""
        if agent >= len(self.means):
            new = [self._draw(m) for m in range(len(self.means), agent + 1)]
            self.table = np.concatenate([self.table, *new])
            means = [np.einsum("kd,kd->k", X, np.broadcast_to(self.thetas, X.shape)) for X in new]
            self.means = np.concatenate([self.means, np.stack(means)])
        return self.table, self.means

    def _draw(self, agent: int) -> Matrix:
        own = np.random.SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, agent))
        rng = generator(own)
        directions = unit_rows(rng.standard_normal((self.world.n_actions, self.world.dim)))
        lengths = rng.uniform(self.world.shortest, 1.0, self.world.n_actions)
        return np.asarray(directions * lengths[:, None])


def ball_rows(rng: np.random.Generator, n: int, dim: int) -> Matrix:
    """n vectors, uniform in the unit ball."""
    directions = unit_rows(rng.standard_normal((n, dim)))
    lengths: Vector = rng.random(n) ** (1.0 / dim)
    return np.asarray(directions * lengths[:, None])
