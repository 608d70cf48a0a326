"""Worlds: θ*, decision sets, rewards. A seed gives the same world whatever the algorithm does.

A world draws its rounds in blocks of a fixed size, so that a run of 1 000 rounds is the beginning of one of 2 000.
Actions and noise come from separate streams: changing one does not move the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import Matrix, Vector, as_float_array, finite, finite_at_least, whole_at_least
from fedbandit.core.decision_sets import Ball, DecisionSet
from fedbandit.errors import DimensionMismatch, InvalidParameter

if TYPE_CHECKING:
    from fedbandit.simulation.datasets_base import DataWorld

Index = NDArray[np.int64]
BLOCK_NUMBERS = 1 << 17  # about a megabyte of actions a block: fits a cache, and amortises the call


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive rounds. Actions are an array (n, K, d), or rows of a table, or a decision set that stays."""

    noise: Vector  # (n,), added to the mean of whatever is chosen
    means: Matrix | None = None  # (n, K), the expected reward of each action
    array: NDArray[np.float64] | None = None  # (n, K, d)
    table: Matrix | None = None  # (N, d)
    rows: Index | None = None  # (n, K), which rows of the table are on offer
    decision_set: DecisionSet | None = None

    def __len__(self) -> int:
        return len(self.noise)

    def actions(self, i: int) -> Matrix | DecisionSet:
        """What the agent of round i chooses from."""
        if self.array is not None:
            return np.asarray(self.array[i])
        if self.table is not None and self.rows is not None:
            return np.asarray(self.table[self.rows[i]])
        if self.decision_set is None:
            raise InvalidParameter("a block needs actions: an array, a table with rows, or a decision set")
        return self.decision_set


class Stream(Protocol):
    """One seeded run of a world."""

    theta_star: Vector | None

    def draw(self, active: Index) -> Block:
        """The next rounds, with these agents active, (block_rounds,)."""
        ...


class World(Protocol):
    """Makes streams. `block_rounds` is the size of its blocks."""

    name: ClassVar[str]

    @property
    def dim(self) -> int: ...
    @property
    def block_rounds(self) -> int: ...
    def stream(self, seed: np.random.SeedSequence) -> Stream: ...


def generator(seed: np.random.SeedSequence) -> np.random.Generator:
    """The generator of all worlds: small, fast and good."""
    return np.random.Generator(np.random.SFC64(seed))


def block_size(numbers_a_round: int) -> int:
    """Rounds a block, from 16 to 4 096, so that a block has about `BLOCK_NUMBERS` numbers."""
    return int(min(4096, max(16, BLOCK_NUMBERS // max(numbers_a_round, 1))))


@dataclass(slots=True)
class DrawnStream:
    """A stream whose actions come from a function of a generator."""

    theta_star: Vector | None
    action_rng: np.random.Generator
    noise_rng: np.random.Generator
    noise: float
    make: Callable[[np.random.Generator, Index], Block]

    def draw(self, active: Index) -> Block:
        """The next rounds."""
        block = self.make(self.action_rng, active)
        return _with_noise(block, self.noise * self.noise_rng.standard_normal(len(active)))


def _with_noise(block: Block, noise: Vector) -> Block:
    return Block(noise, block.means, block.array, block.table, block.rows, block.decision_set)


def unit_rows(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same rows, brought to length 1, in place."""
    X /= np.sqrt(np.einsum("...i,...i->...", X, X))[..., None]
    return X


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """The authors' world: actions i.i.d. uniform on [−1, 1]/√d, θ* = 1/√d in every coordinate."""

    name: ClassVar[str] = "uniform"
    dim: int = 15
    n_actions: int = 25
    noise: float = 0.3

    def __post_init__(self) -> None:
        _check(self)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * self.n_actions)

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

        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make)


@dataclass(frozen=True, kw_only=True)
class Sphere:
    """Actions in Gaussian directions with unit norm, fresh each round; θ* a random unit vector."""

    name: ClassVar[str] = "sphere"
    dim: int = 15
    n_actions: int = 25
    noise: float = 0.3

    def __post_init__(self) -> None:
        _check(self)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * self.n_actions)

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, actions, noise = seed.spawn(3)
        theta_star = unit_rows(generator(truth).standard_normal(self.dim))

        def make(rng: np.random.Generator, active: Index) -> Block:
            array = unit_rows(rng.standard_normal((len(active), self.n_actions, self.dim)))
            return Block(np.empty(0), array @ theta_star, array)

        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make)


@dataclass(frozen=True, kw_only=True)
class Articles:
    """Li and Wang's world: a fixed pool of articles, some of them on offer each round, θ* a random unit vector.

    Coordinate i of an article is N(0, (d−i)/d), i = 0 … d−1; articles are then brought to unit length.
    """

    name: ClassVar[str] = "articles"
    dim: int = 25
    n_actions: int = 25
    n_articles: int = 1000
    noise: float = 0.1

    def __post_init__(self) -> None:
        _check(self)
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

        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make)


def sample_rows(rng: np.random.Generator, n: int, pool: int, k: int) -> Index:
    """k different rows of a pool for each of n rounds, (n, k): Floyd's method, all rounds at once."""
    # One line per draw and small integers: most of the time goes into comparing with what is taken already.
    rows = np.empty((k, n), dtype=np.int16 if pool <= 1 << 15 else np.int64)
    for i in range(k):
        last = pool - k + i
        pick = rng.integers(0, last + 1, size=n).astype(rows.dtype)
        pick[(rows[:i] == pick).any(axis=0)] = last
        rows[i] = pick
    return np.ascontiguousarray(rows.T, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class BallWorld:
    """Infinite decision sets: everything within a radius is on offer; θ* a random unit vector."""

    name: ClassVar[str] = "ball"
    dim: int = 10
    radius: float = 1.0
    noise: float = 0.3

    def __post_init__(self) -> None:
        whole_at_least(self.dim, 1, "dim")
        finite_at_least(self.radius, 0.0, "radius", strictly=True)
        finite_at_least(self.noise, 0.0, "noise")

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

        return DrawnStream(theta_star, generator(noise), generator(noise.spawn(1)[0]), self.noise, make)


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """Decision sets chosen to hurt: directions of a hidden basis come up one after another, in phases.

    In a phase all actions are ± one direction at several lengths, so nothing learnt before helps, every agent is blind
    again, and the sign of a small gap must be found out. Phases repeat for ever; nothing here is random but θ*.
    """

    name: ClassVar[str] = "adversarial"
    dim: int = 10
    n_actions: int = 4
    gap: float = 0.2
    phase: int = 200
    noise: float = 0.3

    def __post_init__(self) -> None:
        _check(self)
        whole_at_least(self.n_actions, 2, "n_actions")
        whole_at_least(self.phase, 1, "phase")
        finite_at_least(self.gap, 0.0, "gap", strictly=True)

    @property
    def block_rounds(self) -> int:
        return block_size(self.dim * self.n_actions)

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

        return DrawnStream(theta_star, generator(actions), generator(noise), self.noise, make)


@dataclass(frozen=True, eq=False)
class FromArrays:
    """Anybody's features (n, K, d) and rewards (n, K): a round shows one row, in order or shuffled, again and again.

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
        if self.agents is not None:
            agents = np.asarray(self.agents, dtype=np.int64)
            if agents.shape != (len(features),):
                raise DimensionMismatch(f"expected one agent a row, shape ({len(features)},), got {agents.shape}")
            object.__setattr__(self, "agents", agents)
            self._by_agent.update({int(m): np.flatnonzero(agents == m) for m in np.unique(agents)})

    @property
    def dim(self) -> int:
        return int(self.features.shape[2])

    @property
    def block_rounds(self) -> int:
        return block_size(int(np.prod(self.features.shape[1:])))

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


def _check(world: Any) -> None:
    whole_at_least(world.dim, 1, "dim")
    whole_at_least(world.n_actions, 1, "n_actions")
    finite_at_least(world.noise, 0.0, "noise")


def from_arrays(
    features: ArrayLike,
    rewards: ArrayLike,
    *,
    agents: ArrayLike | None = None,
    shuffle: bool = True,
    noise: float = 0.0,
) -> FromArrays:
    """A world of your own data: features (n, K, d), the reward of every action (n, K), and whose row it is (n,)."""
    who = None if agents is None else np.asarray(agents, dtype=np.int64)
    return FromArrays(np.asarray(features), np.asarray(rewards), who, shuffle, noise)


def real(name: str, **options: Any) -> DataWorld:
    """The world of a data set by name: digits, breast_cancer, wine, flights; lastfm and others by download."""
    from fedbandit.simulation import real as data_sets

    return data_sets.real(name, **options)


def from_parquet(path: str | Path, **columns: Any) -> DataWorld:
    """A world of your own table: agent, decision, features and reward, one line for each arm of each decision."""
    from fedbandit.simulation.datasets_table import from_parquet as read

    return read(path, **columns)


uniform, articles, sphere, ball, adversarial = Uniform, Articles, Sphere, BallWorld, Adversarial
WORLDS: dict[str, Callable[..., World]] = {
    world.name: world for world in (Uniform, Articles, Sphere, BallWorld, Adversarial)
}
