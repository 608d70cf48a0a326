"""The interface of worlds: blocks of rounds, drawn from seeded streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector, keep_finite, keep_whole, whole_at_least
from fedbandit.core.decision_sets import DecisionSet
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.noise import with_noise_of

Index = NDArray[np.int64]
MOST_AGENTS = 10_000_000  # in arrays that name an agent for each row
# Metadata of a field that is left out of a description while it is None.
LATER: Mapping[str, bool] = {"later": True}
BLOCK_NUMBERS = 1 << 17  # about a megabyte of actions per block: fits a cache, and amortises the call


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive rounds. Actions are an array (n, K, d), or rows of a table, or a decision set that stays.

    Every block is checked before an engine reads it (block_checks.py). A table is checked once and must not change in
    place: return another array instead.
    """

    noise: Vector | Matrix  # (n,), added to the mean of whatever is chosen; or (n, K), one for each action
    means: Matrix | None = None  # (n, K), the expected reward of each action; None: ⟨θ*, x⟩
    array: NDArray[np.float64] | None = None  # (n, K, d)
    table: Matrix | None = None  # (N, d)
    rows: Index | None = None  # (n, K), which rows of the table are on offer
    decision_set: DecisionSet | None = None
    sizes: Index | None = None  # (n,), how many of the K actions round i offers, the first ones; None: all

    def __len__(self) -> int:
        return len(self.noise)

    def actions(self, i: int) -> Matrix | DecisionSet:
        """The decision set of round i."""
        if self.array is not None:
            return np.asarray(self.array[i, : self._size(i)])
        if self.table is not None and self.rows is not None:
            return np.asarray(self.table[self.rows[i, : self._size(i)]])
        if self.decision_set is None:
            raise InvalidParameter("a block needs actions: an array, a table with rows, or a decision set")
        return self.decision_set

    def means_of(self, i: int) -> Vector | None:
        """The means of what round i offers."""
        return None if self.means is None else np.asarray(self.means[i, : self._size(i)])

    def noise_of(self, i: int, index: int | None) -> float:
        """The noise of round i for the action of this index."""
        return float(self.noise[i] if self.noise.ndim == 1 else self.noise[i, index or 0])

    def _size(self, i: int) -> int | None:
        return None if self.sizes is None else int(self.sizes[i])


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
    """The random generator of all worlds."""
    return np.random.Generator(np.random.SFC64(seed))


def block_size(numbers_a_round: int) -> int:
    """Rounds per block, from 16 to 4 096, so that a block has about `BLOCK_NUMBERS` numbers."""
    return int(min(4096, max(16, BLOCK_NUMBERS // max(numbers_a_round, 1))))


@dataclass(slots=True)
class DrawnStream:
    """A stream whose actions come from a function of a generator."""

    theta_star: Vector | None
    action_rng: np.random.Generator
    noise_rng: np.random.Generator
    noise: float
    make: Callable[[np.random.Generator, Index], Block]
    noise_kind: str | None = None  # of NOISE_KINDS; None: gaussian
    sizes: Callable[[int], Index] | None = None  # how many actions each of n rounds offers

    def draw(self, active: Index) -> Block:
        """The next rounds."""
        block = self.make(self.action_rng, active)
        if self.sizes is not None:
            block = replace(block, sizes=self.sizes(len(active)))
        return with_noise_of(self.noise_kind, block, len(active), self.noise, self.noise_rng)


def reseed(stream: Stream, seed: int) -> None:
    """Draw further decision sets and noise from this seed; θ* and everything drawn before stay."""
    if not isinstance(stream, DrawnStream):
        raise InvalidParameter(f"expected the stream of a world that draws its rounds, got {type(stream).__name__}")
    actions, noise = np.random.SeedSequence(whole_at_least(seed, 0, "seed")).spawn(2)
    stream.action_rng, stream.noise_rng = generator(actions), generator(noise)


def unit_rows(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same rows, brought to length 1, in place."""
    X /= np.sqrt(np.einsum("...i,...i->...", X, X))[..., None]
    return X


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


def check_numbers(world: Any) -> None:
    keep_whole(world, "dim", 1)
    keep_whole(world, "n_actions", 1)
    keep_finite(world, "noise", 0.0)
    if getattr(world, "fewest_actions", None) is not None:
        keep_whole(world, "fewest_actions", 1)
        if world.fewest_actions > world.n_actions:
            raise InvalidParameter(
                f"expected fewest_actions ≤ n_actions, got {world.fewest_actions} > {world.n_actions}"
            )


def random_sizes(world: Any, seed: np.random.SeedSequence) -> Callable[[int], Index] | None:
    """From `fewest_actions` to `n_actions` in each round, all equally likely; None where all are always on offer."""
    if world.fewest_actions is None:
        return None
    rng = generator(seed.spawn(1)[0])
    return lambda n: rng.integers(world.fewest_actions, world.n_actions + 1, size=n)
