"""Worlds made from arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import Matrix, as_float_array, finite, keep_finite
from fedbandit.errors import DimensionMismatch, InvalidParameter

if TYPE_CHECKING:
    pass

from fedbandit.simulation.worlds.base import MOST_AGENTS, Block, DrawnStream, Index, Stream, block_size, generator


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
    _by_agent: dict[int, Index] = field(init=False, repr=False, default_factory=dict)

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
            agents = numbers.astype(np.int64)
            object.__setattr__(self, "agents", agents)
            self._by_agent.update({int(m): np.flatnonzero(agents == m) for m in np.unique(agents)})

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
        everyone = np.arange(len(self.features))
        decks: dict[int, Any] = {}

        def deal(agent: int) -> int:
            rows = self._by_agent.get(agent) if self.agents is not None else everyone
            if rows is None:
                raise InvalidParameter(f"the data has no rows for agent {agent}")
            key = agent if self.agents is not None else -1
            deck = decks.setdefault(key, [rows, len(rows)])
            if deck[1] >= len(rows):
                deck[0], deck[1] = rng.permutation(rows) if self.shuffle else rows, 0
            deck[1] += 1
            return int(deck[0][deck[1] - 1])

        def make(_: np.random.Generator, active: Index) -> Block:
            picked = np.fromiter((deal(int(m)) for m in active), dtype=np.int64, count=len(active))
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
    who = None if agents is None else as_float_array(agents, "agents")
    return FromArrays(
        as_float_array(features, "features"), as_float_array(rewards, "rewards"), cast(Any, who), shuffle, noise
    )
