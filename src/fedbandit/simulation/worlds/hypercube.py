"""The hard instance behind Theorem 2: the vertices of a cube, and a θ* whose signs one agent can hardly learn alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, keep_finite, keep_whole
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds import Block, DrawnStream, Index, Stream, block_size, generator

MAX_DIM = 12


@dataclass(frozen=True, kw_only=True)
class Hypercube:
    """Every round offers all of {±1/√d}^d; each coordinate of θ* is ±gap with a random sign; R = `noise`.

    After n rounds the sign of a coordinate is known up to noise √(d/n), so an agent alone with T/M rounds cannot tell
    the signs when gap = √(dM/T), while M agents together can: the instance of Lattimore and Szepesvári's Theorem 24.1.
    """

    name: ClassVar[str] = "hypercube"
    dim: int = 6
    gap: float = 0.1
    noise: float = 1.0

    def __post_init__(self) -> None:
        keep_whole(self, "dim", 1)
        if self.dim > MAX_DIM:
            raise InvalidParameter(f"expected dim ≤ {MAX_DIM}, for 2^dim actions must fit; got {self.dim}")
        keep_finite(self, "gap", 0.0, strictly=True)
        keep_finite(self, "noise", 0.0)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * 2**self.dim)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, actions, noise = seed.spawn(3)
        theta_star = self.gap * generator(truth).choice([-1.0, 1.0], size=self.dim)
        table = vertices(self.dim)
        means = table @ theta_star

        def make(rng: np.random.Generator, active: Index) -> Block:
            # In a new order each time: otherwise ties at the start would all go to one corner.
            rows = rng.permuted(np.tile(np.arange(len(table)), (len(active), 1)), axis=1)
            return Block(np.empty(0), means[rows], table=table, rows=rows)

        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make)


def vertices(dim: int) -> Matrix:
    """All of {±1/√d}^d, (2^d, d).

    >>> vertices(1)
    array([[-1.],
           [ 1.]])
    """
    bits = (np.arange(2**dim)[:, None] >> np.arange(dim)) & 1
    return np.asarray((2.0 * bits - 1.0) / np.sqrt(dim))
