"""A world of users who differ: several clusters, each with its own θ*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, keep_finite, keep_whole
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


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Agent m belongs to cluster m mod `n_clusters`, each with a θ of its own; actions of unit norm, fresh each round.

    Cluster centres are random unit vectors. With `spread` s every agent's θ is its centre plus s times a random unit
    vector, brought back to unit length: clusters that are not exact.
    """

    name: ClassVar[str] = "clusters"
    dim: int = 15
    n_actions: int = 25
    n_clusters: int = 4
    spread: float = 0.0
    noise: float = 0.3

    def __post_init__(self) -> None:
        check_numbers(self)
        keep_whole(self, "n_clusters", 1)
        keep_finite(self, "spread", 0.0)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * self.n_actions)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, actions, noise, own = seed.spawn(4)
        centres = unit_rows(generator(truth).standard_normal((self.n_clusters, self.dim)))
        thetas: Matrix = np.empty((0, self.dim))
        rng = generator(own)

        def make(action_rng: np.random.Generator, active: Index) -> Block:
            nonlocal thetas
            n_new = int(active.max()) + 1 - len(thetas)
            if n_new > 0:
                shifts = self.spread * unit_rows(rng.standard_normal((n_new, self.dim)))
                of = (len(thetas) + np.arange(n_new)) % self.n_clusters
                thetas = np.concatenate([thetas, unit_rows(centres[of] + shifts)])
            array = unit_rows(action_rng.standard_normal((len(active), self.n_actions, self.dim)))
            return Block(np.empty(0), np.einsum("nkd,nd->nk", array, thetas[active]), array)

        theta_star = centres[0] if self.n_clusters == 1 and self.spread == 0 else None
        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make)
