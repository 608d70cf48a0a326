"""Li and Wang's world of clicks: a pool of articles, and a reward of 0 or 1 with probability sigmoid(⟨θ*, x⟩)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Vector, keep_finite, keep_whole
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.base import Block, DrawnStream, Index, Stream, generator, sample_rows, unit_rows


@dataclass(slots=True)
class ClickStream(DrawnStream):
    """A seeded run. `theta_star` is None, for means are not linear in x; `link_theta_star` is θ* behind the link."""

    link_theta_star: Vector = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """`n_articles` articles, `n_actions` of them on offer in each round; a click has probability sigmoid(⟨θ*, x⟩).

    An article is a random direction in d − 1 dimensions and a constant 1, so ‖x‖ = √2; θ* is a random direction of
    length `theta_norm`. Regret is in expected clicks.
    """

    name: ClassVar[str] = "logistic"
    dim: int = 10
    n_actions: int = 25
    n_articles: int = 1000
    theta_norm: float = 1.0

    def __post_init__(self) -> None:
        keep_whole(self, "dim", 2)
        keep_whole(self, "n_actions", 1)
        keep_whole(self, "n_articles", 1)
        keep_finite(self, "theta_norm", 0.0)
        if self.n_articles < self.n_actions:
            raise InvalidParameter(f"expected n_articles ≥ n_actions, got {self.n_articles} < {self.n_actions}")

    @property
    def block_rounds(self) -> int:
        return 1024

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, pool, actions, rewards = seed.spawn(4)
        theta_star = self.theta_norm * unit_rows(generator(truth).standard_normal(self.dim))
        directions = unit_rows(generator(pool).standard_normal((self.n_articles, self.dim - 1)))
        table = np.column_stack([directions, np.ones(self.n_articles)])
        scores = table @ theta_star

        def make(rng: np.random.Generator, active: Index) -> Block:
            rows = sample_rows(rng, len(active), self.n_articles, self.n_actions)
            return Block(np.empty(0), scores[rows], table=table, rows=rows)  # scores until the noise is drawn

        rngs = generator(actions), generator(rewards)
        return ClickStream(None, *rngs, 0.0, make, "bernoulli", link_theta_star=theta_star)
