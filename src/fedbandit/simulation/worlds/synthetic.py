"""Synthetic worlds: uniform, sphere, articles, ball and adversarial."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import keep_finite, keep_whole
from fedbandit.core.decision_sets import Ball
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.base import (
    LATER,
    Block,
    DrawnStream,
    Index,
    Stream,
    block_size,
    check_numbers,
    generator,
    random_sizes,
    sample_rows,
    unit_rows,
)
from fedbandit.simulation.worlds.noise import check_noise_kind


@dataclass(frozen=True, kw_only=True)
class FiniteWorld:
    """The options of worlds with a finite decision set in every round."""

    dim: int = 15
    n_actions: int = 25
    noise: float = 0.3
    noise_kind: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_numbers(self)
        check_noise_kind(self)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * self.n_actions)


@dataclass(frozen=True, kw_only=True)
class Uniform(FiniteWorld):
    """The authors' world: actions i.i.d. uniform on [−1, 1]/√d, θ* = 1/√d in every coordinate."""

    name: ClassVar[str] = "uniform"
    fewest_actions: int | None = field(default=None, metadata=LATER)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        actions, noise = seed.spawn(2)
        theta_star = np.full(self.dim, self.dim**-0.5)
        scale = 2.0 * self.dim**-0.5

        def make(rng: np.random.Generator, active: Index) -> Block:
            array = rng.random((len(active), self.n_actions, self.dim))
            array -= 0.5
            array *= scale
            return Block(np.empty(0), array @ theta_star, array)

        sizes = random_sizes(self, seed)
        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make, self.noise_kind, sizes)


@dataclass(frozen=True, kw_only=True)
class Sphere(FiniteWorld):
    """Actions in Gaussian directions with unit norm, fresh each round; θ* a random unit vector."""

    name: ClassVar[str] = "sphere"
    fewest_actions: int | None = field(default=None, metadata=LATER)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, actions, noise = seed.spawn(3)
        theta_star = unit_rows(generator(truth).standard_normal(self.dim))

        def make(rng: np.random.Generator, active: Index) -> Block:
            array = unit_rows(rng.standard_normal((len(active), self.n_actions, self.dim)))
            return Block(np.empty(0), array @ theta_star, array)

        sizes = random_sizes(self, seed)
        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make, self.noise_kind, sizes)


@dataclass(frozen=True, kw_only=True)
class Articles(FiniteWorld):
    """Li and Wang's world: a fixed pool of articles, some of them on offer each round, θ* a random unit vector.

    Coordinate i of an article is N(0, (d−i)/d), i = 0 … d−1; articles are then brought to unit length.
    """

    name: ClassVar[str] = "articles"
    dim: int = 25
    n_articles: int = 1000
    noise: float = 0.1
    fewest_actions: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_whole(self, "n_articles", 1)
        if self.n_articles < self.n_actions:
            raise InvalidParameter(f"expected n_articles ≥ n_actions, got {self.n_articles} < {self.n_actions}")

    @property
    def block_rounds(self) -> int:
        # Only row numbers are drawn, so a block may be long; much longer ones leave the cache.
        return 1024

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, pool, actions, noise = seed.spawn(4)
        theta_star = unit_rows(generator(truth).standard_normal(self.dim))
        spread = np.sqrt((self.dim - np.arange(self.dim)) / self.dim)
        table = unit_rows(generator(pool).standard_normal((self.n_articles, self.dim)) * spread)
        means = table @ theta_star

        def make(rng: np.random.Generator, active: Index) -> Block:
            rows = sample_rows(rng, len(active), self.n_articles, self.n_actions)
            return Block(np.empty(0), means[rows], table=table, rows=rows)

        sizes = random_sizes(self, seed)
        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make, self.noise_kind, sizes)


@dataclass(frozen=True, kw_only=True)
class BallWorld:
    """Infinite decision sets: everything within a radius is on offer; θ* a random unit vector."""

    name: ClassVar[str] = "ball"
    dim: int = 10
    radius: float = 1.0
    noise: float = 0.3
    noise_kind: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        keep_whole(self, "dim", 1)
        keep_finite(self, "radius", 0.0, strictly=True)
        keep_finite(self, "noise", 0.0)
        check_noise_kind(self, finite=False)

    @property
    def block_rounds(self) -> int:
        return 1024

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, noise = seed.spawn(2)
        theta_star = unit_rows(generator(truth).standard_normal(self.dim))
        ball = Ball(self.dim, self.radius)

        def make(rng: np.random.Generator, active: Index) -> Block:
            return Block(np.empty(0), decision_set=ball)

        return DrawnStream(
            theta_star, generator(noise), generator(noise.spawn(1)[0]), self.noise, make, self.noise_kind
        )


@dataclass(frozen=True, kw_only=True)
class Adversarial(FiniteWorld):
    """Adversarial decision sets: the directions of a hidden basis are offered one after another, in phases.

    In a phase all actions are ± one direction at several lengths, so nothing learnt before helps, every agent starts
    without information, and the sign of a small gap must be learnt. Phases repeat without end; only θ* is random.
    """

    name: ClassVar[str] = "adversarial"
    dim: int = 10
    n_actions: int = 4
    gap: float = 0.2
    phase: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_whole(self, "n_actions", 2)
        keep_whole(self, "phase", 1)
        keep_finite(self, "gap", 0.0, strictly=True)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, actions, noise = seed.spawn(3)
        rng = generator(truth)
        basis = np.linalg.qr(rng.standard_normal((self.dim, self.dim)))[0]
        signs = rng.choice([-1.0, 1.0], size=self.dim)
        theta_star = basis @ (signs * self.gap)
        pairs = (self.n_actions + 1) // 2
        lengths = np.repeat(np.linspace(1.0, 0.5, pairs), 2)[: self.n_actions]
        lengths[1::2] *= -1.0
        table = (lengths[None, :, None] * basis.T[:, None, :]).reshape(-1, self.dim)
        means = table @ theta_star
        clock = [0]

        def make(rng: np.random.Generator, active: Index) -> Block:
            rounds = clock[0] + np.arange(len(active))
            clock[0] += len(active)
            direction = (rounds // self.phase) % self.dim
            rows = direction[:, None] * self.n_actions + np.arange(self.n_actions)
            return Block(np.empty(0), means[rows], table=table, rows=rows)

        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make, self.noise_kind)
