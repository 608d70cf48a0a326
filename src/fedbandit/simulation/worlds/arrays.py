"""Worlds made from arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import Matrix, as_float_array, finite, keep_finite
from fedbandit.errors import DimensionMismatch, InvalidParameter
from fedbandit.simulation.worlds.base import MOST_AGENTS, Block, DrawnStream, Index, Stream, block_size, generator
from fedbandit.simulation.worlds.decks import Decks


@dataclass(frozen=True, eq=False)
class FromArrays:
    """Given features (n, K, d) and rewards (n, K): a round shows one row, in order or shuffled, repeated without end.

    The reward of every action must be known. With `agents` (n,), round t shows the active agent's own next row.
    """

    name: ClassVar[str] = "arrays"
    features: NDArray[np.float64]
    rewards: Matrix
    agents: Index | None = None
    shuffle: bool = True
    noise: float = 0.0

    def __post_init__(self) -> None:
        features, rewards = as_float_array(self.features, "features"), as_float_array(self.rewards, "rewards")
        if features.ndim != 3 or 0 in features.shape:
            raise DimensionMismatch(f"expected features of shape (n, K, d), got {features.shape}")
        if rewards.shape != features.shape[:2]:
            raise DimensionMismatch(f"expected rewards of shape {features.shape[:2]}, got {rewards.shape}")
        object.__setattr__(self, "features", finite(features, "features"))
        object.__setattr__(self, "rewards", finite(rewards, "rewards"))
        keep_finite(self, "noise", 0.0)
        if self.agents is not None:
            numbers = as_float_array(self.agents, "agents")
            if numbers.shape != (len(features),):
                raise DimensionMismatch(f"expected one agent per row, shape ({len(features)},), got {numbers.shape}")
            if not ((numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < MOST_AGENTS)).all():
                raise InvalidParameter("expected agents as whole numbers from 0 on, one for each row")
            object.__setattr__(self, "agents", numbers.astype(np.int64))

    @property
    def dim(self) -> int:
        return int(self.features.shape[2])

    @property
    def block_rounds(self) -> int:
        return block_size(int(np.prod(self.features.shape[1:])))

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Number of rows of each agent, for `fb.participation.by_rows`."""
        if self.agents is None:
            raise InvalidParameter("these rows have no agents: pass agents=, one number for each row, to from_arrays")
        return tuple(np.bincount(self.agents).tolist())

    @property
    def n_rows(self) -> int:
        """Rows in the data: the rounds of one pass."""
        return len(self.features)

    @property
    def fleet_size(self) -> int:
        """Number of agents M."""
        return len(self.row_counts)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        order, noise = seed.spawn(2)
        rng = generator(order)
        owners = np.zeros(len(self.features), dtype=np.int64) if self.agents is None else self.agents
        decks = Decks(owners, rng, shuffle=self.shuffle)

        def make(_: np.random.Generator, active: Index) -> Block:
            picked = decks.deal(np.zeros_like(active) if self.agents is None else active)
            return Block(np.empty(0), self.rewards[picked], self.features[picked])

        return DrawnStream(None, rng, generator(noise), self.noise, make)


def from_arrays(
    features: ArrayLike,
    rewards: ArrayLike,
    *,
    agents: ArrayLike | None = None,
    shuffle: bool = True,
    noise: float = 0.0,
) -> FromArrays:
    """A world of your own data: features (n, K, d), the reward of every action (n, K), and whose row it is (n,)."""
    return FromArrays(cast(Any, features), cast(Any, rewards), cast(Any, agents), shuffle, noise)
